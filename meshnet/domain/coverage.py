"""Which layers are held, by whom, what is missing, and what one node's loss would uncover.

Owns the map and its words; does not know where nodes come from or what a model costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.shards import Shard, format_layers


def layer_depths(nodes: Sequence[Node], n_layers: int) -> list[int]:
    """How many of the nodes hold each layer, 0..n_layers - 1."""
    return shard_depths((node.shard for node in nodes), n_layers)


def shard_depths(shards: Iterable[Shard], n_layers: int) -> list[int]:
    """How many of the shards hold each layer, 0..n_layers - 1. O(shards + layers): every search of routes asks."""
    steps = [0] * (n_layers + 1)
    for shard in shards:
        if shard.start < n_layers:
            steps[shard.start] += 1
            steps[min(shard.end + 1, n_layers)] -= 1
    return list(accumulate(steps[:-1]))


def uncovered_layers(nodes: Sequence[Node]) -> list[int]:
    """Layers that none of these nodes (all of one model) holds."""
    if not nodes:
        return []
    return [layer for layer, depth in enumerate(layer_depths(nodes, nodes[0].n_layers)) if depth == 0]


def coverage_deficit(depths: Sequence[int]) -> float:
    """Share of layers held by no node, in [0, 1] (ADR-0013)."""
    return sum(depth == 0 for depth in depths) / len(depths) if depths else 1.0


def layer_ranges(layers: Iterable[int]) -> tuple[Shard, ...]:
    """``{0, 1, 2, 7}`` -> ranges 0-2 and 7-7: gaps as values."""
    ranges: list[Shard] = []
    for layer in sorted(set(layers)):
        if ranges and layer == ranges[-1].end + 1:
            ranges[-1] = Shard(ranges[-1].start, layer)
        else:
            ranges.append(Shard(layer, layer))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class LayerCoverage:
    """One layer: who serves it now, who is loading it, and how many reservations hold it for a joining node."""

    layer: int
    node_ids: tuple[NodeId, ...] = ()
    loading_ids: tuple[NodeId, ...] = ()
    reserved: int = 0

    @property
    def depth(self) -> int:
        """Nodes that serve the layer now."""
        return len(self.node_ids)

    @property
    def promised(self) -> int:
        """Nodes that serve it now or are on their way: what the assignment score looks at (ADR-0031)."""
        return self.depth + len(self.loading_ids) + self.reserved


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """What goes when one node goes: the layers that it alone serves."""

    node_id: NodeId
    uncovers: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """Availability of one model, layer by layer."""

    model_key: ModelKey
    n_layers: int
    layers: tuple[LayerCoverage, ...]

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(layer.depth for layer in self.layers)

    @property
    def gaps(self) -> tuple[Shard, ...]:
        """Ranges that no ready node holds: while there is one, no request of this model can be served."""
        return layer_ranges(layer.layer for layer in self.layers if layer.depth == 0)

    @property
    def on_the_way(self) -> tuple[Shard, ...]:
        """The parts of the gaps that somebody is loading or has reserved."""
        return layer_ranges(layer.layer for layer in self.layers if layer.depth == 0 < layer.promised)

    @property
    def deficit(self) -> float:
        """Share of layers that nobody serves now, in [0, 1]: what a person is shown."""
        return coverage_deficit(self.depths)

    @property
    def promised_deficit(self) -> float:
        """Share of layers that nobody serves, loads or has reserved: the score's ``coverage_deficit``."""
        return coverage_deficit([layer.promised for layer in self.layers])

    @property
    def single_host(self) -> tuple[Shard, ...]:
        """Ranges that exactly one ready node holds: its loss stops the model."""
        return layer_ranges(layer.layer for layer in self.layers if layer.depth == 1)

    @property
    def losses(self) -> tuple[NodeLoss, ...]:
        """For every ready node whose loss would open a gap, which; by node_id."""
        alone: dict[NodeId, list[int]] = {}
        for layer in self.layers:
            if layer.depth == 1:
                alone.setdefault(layer.node_ids[0], []).append(layer.layer)
        return tuple(NodeLoss(node_id, layer_ranges(layers)) for node_id, layers in sorted(alone.items()))

    def uncovered_by_loss(self, node_id: NodeId) -> tuple[Shard, ...]:
        """The ranges that only this node serves; empty if it can go without a gap."""
        return next((loss.uncovers for loss in self.losses if loss.node_id == node_id), ())

    @property
    def summary(self) -> str:
        """The map in one sentence, for people who do not see the colours."""
        if self.gaps:
            missing = format_layers(layer.layer for layer in self.layers if layer.depth == 0)
            coming = format_layers(layer.layer for layer in self.layers if layer.depth == 0 < layer.promised)
            return f"layers {missing} of {self.n_layers} are held by no node" + (
                f"; {coming} on the way" if coming else ""
            )
        if self.single_host:
            alone = format_layers(layer.layer for layer in self.layers if layer.depth == 1)
            return f"all {self.n_layers} layers are held; {alone} by one node only"
        return f"all {self.n_layers} layers are held, each by at least {min(self.depths)} nodes"


def coverage_map(
    nodes: Iterable[Node], model_key: ModelKey, n_layers: int, reserved: Iterable[Shard] = ()
) -> CoverageMap:
    """The map of one model. Nodes of other models or layer counts are left out; ready ones serve, loading ones are on
    their way, draining ones count as gone. ``reserved`` are shards promised to nodes that are not here yet.

    Nodes with other weights or dtypes cannot share a route: give one of ``routes.routable_groups`` for the map of what
    can answer, all nodes for the map of what is there.
    """
    serving: list[list[NodeId]] = [[] for _ in range(n_layers)]
    loading: list[list[NodeId]] = [[] for _ in range(n_layers)]
    for node in sorted(nodes, key=lambda node: node.node_id):
        if node.model_key == model_key and node.n_layers == n_layers and node.state != "draining":
            cells = serving if node.state == "ready" else loading
            for layer in range(node.shard.start, min(node.shard.end, n_layers - 1) + 1):
                cells[layer].append(node.node_id)
    promised = shard_depths(reserved, n_layers)
    layers = zip(range(n_layers), map(tuple, serving), map(tuple, loading), promised, strict=True)
    return CoverageMap(model_key, n_layers, tuple(LayerCoverage(*layer) for layer in layers))
