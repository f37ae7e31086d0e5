"""Who this node is: fixed for the life of the process, the lease's epoch apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshnet.domain.errors import EpochChanged, InvalidRequest, MeshnetError
from meshnet.domain.ids import NodeId
from meshnet.domain.shards import Shard
from meshnet.wire import api
from meshnet.wire.messages import Generate, Hello, HopMessage, Open


@dataclass(frozen=True, slots=True)
class Holding:
    """The weights this process holds: another shard or revision is another process."""

    node_id: NodeId
    boot: str
    model_key: str
    revision: str
    shard: Shard
    n_layers: int
    hidden_size: int
    context_length: int
    dtype: str

    @property
    def is_head(self) -> bool:
        return self.shard.start == 0


@dataclass(slots=True)
class Identity:
    """A holding and the epoch of its lease, which the announcer alone changes."""

    holding: Holding
    epoch: int = 0
    draining: bool = field(default=False)

    @property
    def node_id(self) -> NodeId:
        return self.holding.node_id

    def hello(self) -> Hello:
        holding = self.holding
        return Hello(
            peer_id=holding.node_id,
            role="node",
            boot=holding.boot,
            wire_version=api.WIRE_VERSION,
            revision=holding.revision,
            epoch=self.epoch,
            dtype=holding.dtype,
        )

    def check_part(self, ask: Generate | Open, index: int) -> HopMessage:
        """This node's part in the route of ``ask``. Raises EpochChanged when the route speaks of what this node no
        longer is, InvalidRequest when it is no route."""
        if not 0 <= index < len(ask.hops):
            raise InvalidRequest(f"hop {index} of {len(ask.hops)}")
        hop = ask.hops[index]
        self._require_same_weights(ask, hop)
        check_layers(ask.hops, self.holding.n_layers)
        if not self.holding.shard.holds(hop.start_layer, hop.end_layer):
            raise EpochChanged(
                f"{self.node_id} holds layers {self.holding.shard}, not {hop.start_layer}-{hop.end_layer}."
            )
        return hop

    def _require_same_weights(self, ask: Generate | Open, hop: HopMessage) -> None:
        holding = self.holding
        asked = (hop.node_id, ask.model_key, ask.revision, ask.dtype)
        mine = (holding.node_id, holding.model_key, holding.revision, holding.dtype)
        if asked != mine:
            raise EpochChanged(f"The route asks for {' '.join(asked)}; this is {' '.join(mine)}.")
        if hop.epoch not in (0, self.epoch):
            raise EpochChanged(f"The route knows {self.node_id} of epoch {hop.epoch}; it is {self.epoch}.")


def check_layers(hops: tuple[HopMessage, ...], n_layers: int) -> None:
    """Raises InvalidRequest unless the hops abut from layer 0 to the last one."""
    expected = 0
    for hop in hops:
        if hop.start_layer != expected or hop.end_layer < hop.start_layer:
            raise InvalidRequest(f"{hop.node_id} starts at layer {hop.start_layer}; layer {expected} comes next.")
        expected = hop.end_layer + 1
    if expected != n_layers:
        raise InvalidRequest(f"The route ends at layer {expected - 1} of {n_layers}.")


def retry_elsewhere(error: MeshnetError) -> bool:
    """Whether another node could do what this one refused: the client's own faults follow it everywhere."""
    return not isinstance(error, InvalidRequest)
