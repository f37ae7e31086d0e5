"""Candidates: the routes one choice may take, with what is known of their hops now, and ADR-0021's enumeration of them.

``route_search`` finds the candidates of the policies beyond the record.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshnet.domain.coverage import uncovered_layers
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import DEFAULT_BENCHMARK_TPS, Node
from meshnet.domain.routes import MAX_HOPS, Hop, Route, make_hop, make_route, routable_groups

MAX_CANDIDATES = 8
"""Candidates of one choice (ADR-0021). Raising it measures more routes, each of them less often."""
HOP_LINK_S = 0.005
"""Seconds a token spends between two hops before anything is measured: a trip on a home network and the frame's
handling. Raising it prefers fewer hops among machines that claim alike."""
MAX_LOAD = 1_000_000
"""A queue beyond this is a broken report; it is cut so that arithmetic stays finite."""


RELAY_TRIP_S = 0.02
"""What a relay adds to a hop before anything is measured: one more line between two homes. Raising it keeps relayed
nodes from being tried where direct ones would do."""

HopWork = tuple[NodeId, float, int, float, float]
"""What a hop does for one token: its node_id, its work in layers (the output head counted as such), the node's load,
seconds per layer it claims, seconds of its link before it is measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A route that may be chosen, with what is known of its hops now. The tuples run along ``route.hops``."""

    route: Route
    signature: str
    prior_tps: float
    """Tokens/s expected before measuring: the bottleneck hop's for ``adr``, harmonic (times add up) for the others."""
    loads: tuple[int, ...]
    """Per hop: max(queue_depth, in_flight)."""
    reputations: tuple[float, ...]
    """Per hop: decayed success share, in [0, 1]."""
    layer_s: tuple[float, ...]
    """Per hop: seconds per token and layer that its benchmark claims, idle."""
    node_ids: tuple[NodeId, ...] = field(init=False, repr=False, compare=False)
    work: tuple[HopWork, ...] = field(init=False, repr=False, compare=False)
    """Per hop, as ``node_ids``; both kept, because every choice reads them of every candidate."""
    reputation: float = field(init=False, repr=False, compare=False)
    """Chance that every hop holds, were they independent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_ids", self.route.node_ids)
        object.__setattr__(self, "work", hop_work(self.route.hops, self.loads, self.layer_s))
        object.__setattr__(self, "reputation", math.prod(self.reputations))


def hop_work(hops: Sequence[Hop], loads: Sequence[int], layer_s: Sequence[float]) -> tuple[HopWork, ...]:
    """Of each hop; the sequences run along them."""
    return tuple(
        (hop.node_id, hop.work_layers, load, seconds, unmeasured_link_s(hop))
        for hop, load, seconds in zip(hops, loads, layer_s, strict=True)
    )


def make_candidate(route: Route, by_id: Mapping[NodeId, Node], prior_tps: float | None = None) -> Candidate:
    """A Candidate over live nodes; without ``prior_tps`` the prior is harmonic."""
    nodes = [by_id[hop.node_id] for hop in route.hops]
    loads = tuple(usable_load(node) for node in nodes)
    reputations = tuple(usable_reputation(node) for node in nodes)
    layer_s = tuple(claimed_layer_s(node) for node in nodes)
    if prior_tps is None:
        prior_tps = harmonic_tps(route.hops, loads, reputations, layer_s)
    return Candidate(route, route.signature, prior_tps, loads, reputations, layer_s)


def harmonic_tps(
    hops: Sequence[Hop], loads: Sequence[int], reputations: Sequence[float], layer_s: Sequence[float]
) -> float:
    """``1 / sum over hops of (layers x layer_s x (load + 1) / reputation + link)``: one stream's token crosses every
    hop in turn, and a relay where the hop is behind one. 0 where a hop's reputation is 0."""
    total = 0.0
    for hop, load, reputation, seconds in zip(hops, loads, reputations, layer_s, strict=True):
        if reputation <= 0:
            return 0.0
        total += hop.work_layers * seconds * (load + 1) / reputation + unmeasured_link_s(hop)
    return 1.0 / total


def usable_load(node: Node) -> int:
    """The node's load, cut to 0..MAX_LOAD; what is no number counts as 0."""
    load = node.load
    if 0 <= load <= MAX_LOAD:  # as nearly always
        return int(load)
    return int(min(max(load, 0), MAX_LOAD)) if math.isfinite(load) else 0


def usable_reputation(node: Node) -> float:
    """The node's reputation, cut to [0, 1]; what is no number counts as 1, where every node starts."""
    reputation = node.reputation
    if 0.0 <= reputation <= 1.0:  # as nearly always
        return reputation
    return min(max(reputation, 0.0), 1.0) if math.isfinite(reputation) else 1.0


def usable_benchmark(node: Node) -> float:
    """The claimed tokens/s over the node's own shard; what is no positive finite number counts as the default."""
    benchmark = node.benchmark_tokens_per_sec
    return benchmark if math.isfinite(benchmark) and benchmark > 0 else DEFAULT_BENCHMARK_TPS


def claimed_layer_s(node: Node) -> float:
    """Seconds per token and layer that the benchmark claims: it was measured over the node's own shard, idle."""
    return 1.0 / (usable_benchmark(node) * node.work_layers)


def unmeasured_link_s(hop: Hop | Node) -> float:
    """Seconds a token spends on a hop's link, before anything is measured."""
    return HOP_LINK_S + RELAY_TRIP_S if hop.is_relayed else HOP_LINK_S


def hop_prior_tps(node: Node) -> float:
    """ADR-0021: ``benchmark / (queue_depth + 1) x reputation``, not scaled by the layers the hop executes. A hop behind
    a relay takes RELAY_TRIP_S more a token."""
    tps = usable_benchmark(node) / (usable_load(node) + 1) * usable_reputation(node)
    return tps / (1.0 + tps * RELAY_TRIP_S) if node.is_relayed and tps > 0 else tps


def candidate_groups(nodes: Sequence[Node], model_key: ModelKey) -> list[list[Node]]:
    """Groups of like nodes that can serve the model now, largest first, all of the first one's revision: routes of
    several dtypes may compete, other weights may not. Nodes that claim layers the model has not are ignored."""
    sane = [node for node in nodes if node.model_key == model_key and node.shard.end < node.n_layers]
    complete = [group for group in routable_groups(sane, model_key) if not uncovered_layers(group)]
    return [group for group in complete if group[0].revision == complete[0][0].revision]


def enumerate_routes(nodes: Sequence[Node], model_key: ModelKey, limit: int = MAX_CANDIDATES) -> list[Candidate]:
    """ADR-0021's candidates: one per distinct head, completed greedily with the hop that reaches furthest, best prior
    first, at most ``limit``. Among hops that reach equally far the one with the higher prior, so that tails spread.

    The prior is the bottleneck's: ``min over hops of benchmark / (load + 1) x reputation``. Not empty whenever a
    complete route exists: a hop may be entered anywhere inside its shard, so taking the furthest end never dead-ends.
    O(nodes log nodes).
    """
    found: list[tuple[float, str, Node, list[_Completion | None]]] = []
    for group in candidate_groups(nodes, model_key):
        completions = _completions(group)
        for head in group:
            if head.is_head and (rest := completions[head.shard.end + 1]) is not None:
                found.append((-min(hop_prior_tps(head), rest.prior_tps), head.node_id, head, completions))
    best = heapq.nsmallest(limit, found, key=lambda item: item[:2])
    return [_greedy_candidate(head, completions, -negative) for negative, _, head, completions in best]


@dataclass(frozen=True, slots=True)
class _Completion:
    """The greedy way from a layer to the model's end: its bottleneck, its length, its first node (None at the end)."""

    prior_tps: float
    n_hops: int
    node: Node | None


def _completions(group: Sequence[Node]) -> list[_Completion | None]:
    """Per layer 0..n_layers the greedy completion from there; None where there is none within MAX_HOPS."""
    next_nodes = _furthest_nodes(group)
    completions: list[_Completion | None] = [None] * len(next_nodes) + [_Completion(math.inf, 0, None)]
    for layer in range(len(next_nodes) - 1, -1, -1):
        node = next_nodes[layer]
        rest = completions[node.shard.end + 1] if node is not None else None
        if node is not None and rest is not None and rest.n_hops + 1 < MAX_HOPS:
            completions[layer] = _Completion(min(hop_prior_tps(node), rest.prior_tps), rest.n_hops + 1, node)
    return completions


def _furthest_nodes(group: Sequence[Node]) -> list[Node | None]:
    """Per layer the node that holds it and reaches furthest; ties by higher prior, then smaller node_id."""
    starting: list[Node | None] = [None] * group[0].n_layers
    for node in group:
        start = node.shard.start
        starting[start] = _further(node, starting[start])
    best: Node | None = None
    furthest: list[Node | None] = []
    for layer, node in enumerate(starting):
        if node is not None:
            best = _further(node, best)
        furthest.append(best if best is not None and best.shard.end >= layer else None)
    return furthest


def _further(node: Node, best: Node | None) -> Node:
    if best is None or node.shard.end > best.shard.end:
        return node
    if node.shard.end < best.shard.end:
        return best
    mine, theirs = hop_prior_tps(node), hop_prior_tps(best)
    return node if mine > theirs or (mine == theirs and node.node_id < best.node_id) else best


def _greedy_candidate(head: Node, completions: Sequence[_Completion | None], prior_tps: float) -> Candidate:
    chosen, step = [head], completions[head.shard.end + 1]
    while step is not None and step.node is not None:
        chosen.append(step.node)
        step = completions[step.node.shard.end + 1]
    hops: list[Hop] = []
    start = 0
    for node in chosen:
        hops.append(make_hop(node, start, node.shard.end))
        start = node.shard.end + 1
    return make_candidate(make_route(chosen, hops), {node.node_id: node for node in chosen}, prior_tps)
