"""Routes: ordered hops that together cover every layer, and ADR-0013's greedy selection of one.

The head is always the route's own first hop and each ``start_layer`` is ``previous.end_layer + 1`` by construction
(``Route`` refuses anything else), so the flaw of ADR-0020, a head chosen apart from the plan, cannot be written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from meshnet.domain.coverage import uncovered_layers
from meshnet.domain.errors import BadPin, InvalidRequest, NoRoute
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.nodes import Node, effective_throughput
from meshnet.domain.shards import format_layers

MAX_HOPS = 64
"""A route is walked once per token: beyond this the trips alone take seconds, and frames would grow without bound."""

# An id may hold anything but what looks like a hop's range.
_SIGNATURE_HOP = re.compile(r"((?:(?!\[\d{1,4}-\d{1,4}\]).)+)\[(\d{1,4})-(\d{1,4})\](?: -> |\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hop:
    """One node's part in a route: it executes start_layer..end_layer, inclusive, inside its shard."""

    node_id: NodeId
    url: str
    start_layer: int
    end_layer: int
    epoch: int = 0
    tail_layers: float = 0.0
    """What the output head costs it beside, in layers; 0 but for the tail."""

    @property
    def work_layers(self) -> float:
        """What a token costs it, in the time of its node's layers."""
        return self.end_layer - self.start_layer + 1 + self.tail_layers

    @property
    def is_relayed(self) -> bool:
        """Whether its node is reached through a relay."""
        return self.url.startswith("relay://")


@dataclass(frozen=True, slots=True)
class Route:
    """Hops that start at layer 0, abut, and end at layer n_layers - 1. Raises InvalidRequest otherwise."""

    model_key: ModelKey
    revision: Revision
    dtype: str
    n_layers: int
    hops: tuple[Hop, ...]

    def __post_init__(self) -> None:
        expected = 0
        for hop in self.hops:
            if hop.start_layer != expected or hop.end_layer < hop.start_layer:
                raise InvalidRequest(
                    f"hop {hop.node_id} runs {hop.start_layer}-{hop.end_layer}, but layer {expected} comes next"
                )
            expected = hop.end_layer + 1
        if expected != self.n_layers or len(self.hops) > MAX_HOPS:
            raise InvalidRequest(f"a route of {len(self.hops)} hops ends at layer {expected - 1} of {self.n_layers}")
        if len({hop.node_id for hop in self.hops}) != len(self.hops):
            raise InvalidRequest("a node stands twice in the route")

    @property
    def head(self) -> Hop:
        return self.hops[0]

    @property
    def tail(self) -> Hop:
        return self.hops[-1]

    @property
    def signature(self) -> str:
        """The arm's identity: the layers each hop executes, not the shard it holds (ADR-0021 restated)."""
        return signature(self.model_key, self.hops)

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        return tuple(hop.node_id for hop in self.hops)


def signature(model_key: str, hops: Iterable[Hop]) -> str:
    """``model_key | node_id[start-end] -> node_id[start-end]``."""
    return f"{model_key} | " + " -> ".join(f"{h.node_id}[{h.start_layer}-{h.end_layer}]" for h in hops)


def parse_signature(text: str) -> tuple[ModelKey, tuple[tuple[NodeId, int, int], ...]]:
    """What ``signature`` wrote: the model_key and (node_id, start_layer, end_layer) of each hop, inclusive.
    Raises InvalidRequest with the offending text."""
    model_key, separator, rest = text.partition(" | ")
    hops: list[tuple[NodeId, int, int]] = []
    position = 0
    while position < len(rest) and (match := _SIGNATURE_HOP.match(rest, position)):
        hops.append((NodeId(match[1]), int(match[2]), int(match[3])))
        position = match.end()
    if not (separator and hops) or position != len(rest) or rest.endswith(" -> "):
        raise InvalidRequest(f"{text!r} is no route signature; it looks like: model | node_id[0-9] -> node_id[10-19]")
    return ModelKey(model_key), tuple(hops)


def select_route(nodes: Sequence[Node], model_key: ModelKey) -> Route:
    """ADR-0013 section 4, the greedy selection: from layer 0, always the hop that reaches furthest; among equals the
    one with the higher effective throughput, then the smaller node_id.

    ``nodes`` are the live, usable nodes of any model. A mesh that serves several (revision, dtype) pairs at once is
    planned pair by pair, the one with most nodes first. Raises NoRoute naming the uncovered layers.
    """
    groups = routable_groups(nodes, model_key)
    if not groups:
        raise NoRoute(
            f"No live node holds any layer of {model_key}. Start one with: meshnet up node --model {model_key}"
        )
    for group in groups:
        hops = _complete([], 0, group)
        if hops is not None:
            return make_route(group, hops)
    gap = uncovered_layers(groups[0])
    n_layers = groups[0][0].n_layers
    raise NoRoute(f"No route for {model_key}: layers {format_layers(gap)} of {n_layers} are held by no live node.")


def routable_groups(nodes: Sequence[Node], model_key: ModelKey) -> list[list[Node]]:
    """Ready nodes of the model, grouped by (revision, dtype, n_layers): only like nodes may share a route. Largest
    first."""
    groups: dict[tuple[str, str, int], list[Node]] = {}
    for node in nodes:
        if node.model_key == model_key and node.state == "ready":
            groups.setdefault((node.revision, node.dtype, node.n_layers), []).append(node)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].revision, group[0].dtype))


def make_hop(node: Node, start_layer: int, end_layer: int) -> Hop:
    """This node's part in a route."""
    tail_layers = node.tail_layers if end_layer == node.n_layers - 1 else 0.0
    return Hop(node.node_id, node.url, start_layer, end_layer, node.epoch, tail_layers)


def make_route(group: Sequence[Node], hops: Sequence[Hop]) -> Route:
    """A Route over hops of nodes that all stand in ``group``."""
    first = group[0]
    return Route(first.model_key, first.revision, first.dtype, first.n_layers, tuple(hops))


def next_hop(group: Sequence[Node], start_layer: int, used: Collection[NodeId] = ()) -> Hop | None:
    """The hop that advances furthest from start_layer: a node may be entered anywhere inside its shard (ADR-0012)."""
    best = max(
        (n for n in group if start_layer in n.shard and n.node_id not in used),
        # Furthest end first (coverage), then throughput (ADR-0013); the id makes it deterministic.
        key=lambda n: (n.shard.end, effective_throughput(n), _smaller_first(n.node_id)),
        default=None,
    )
    if best is None:
        return None
    return make_hop(best, start_layer, best.shard.end)


def _complete(hops: list[Hop], start_layer: int, group: Sequence[Node]) -> list[Hop] | None:
    n_layers = group[0].n_layers
    hops = list(hops)
    while start_layer < n_layers:
        hop = next_hop(group, start_layer, [h.node_id for h in hops])
        if hop is None or len(hops) == MAX_HOPS:
            return None
        hops.append(hop)
        start_layer = hop.end_layer + 1
    return hops


def _smaller_first(text: str) -> tuple[int, ...]:
    return tuple(-ord(c) for c in text)


def pinned_route(nodes: Sequence[Node], model_key: ModelKey, pin: Sequence[str]) -> Route:
    """The route through exactly these nodes, in this order; each runs as far as its shard reaches, no further than
    the next one needs. Raises BadPin saying which node is unknown or dead, or which layers the pin misses."""
    by_id = {node.node_id: node for node in nodes}
    chosen: list[Node] = []
    for node_id in pin:
        node = by_id.get(NodeId(node_id))
        if node is None:
            raise BadPin(f"Node {node_id} of the pinned route is not live in this mesh. See: meshnet nodes")
        if node.model_key != model_key:
            raise BadPin(f"Node {node_id} of the pinned route serves {node.model_key}, not {model_key}.")
        if node.state != "ready":
            raise BadPin(f"Node {node_id} of the pinned route is {node.state}.")
        if node in chosen:
            raise BadPin(f"Node {node_id} stands twice in the pinned route.")
        chosen.append(node)
    if not chosen:
        raise BadPin("The pinned route is empty.")
    if len({(n.revision, n.dtype, n.n_layers) for n in chosen}) > 1:
        raise BadPin("The nodes of the pinned route hold different weights or dtypes.")
    return make_route(chosen, _pin_hops(chosen))


def _pin_hops(chosen: Sequence[Node]) -> list[Hop]:
    hops: list[Hop] = []
    start = 0
    n_layers = chosen[0].n_layers
    for node in chosen:
        if start >= n_layers:
            raise BadPin(
                f"Node {node.node_id} of the pinned route has nothing left to run: all {n_layers} layers are done."
            )
        if start not in node.shard:
            raise BadPin(f"The pinned route has a gap: layer {start} comes next, but {node.node_id} does not hold it.")
        hops.append(make_hop(node, start, node.shard.end))
        start = node.shard.end + 1
    if start < n_layers:
        raise BadPin(f"The pinned route ends at layer {start - 1}; layers {start}-{n_layers - 1} are missing.")
    return hops
