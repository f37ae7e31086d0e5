"""The k fastest routes over layer positions, for the policies beyond ADR-0021: a hop may start and end inside a shard.

Times add up along a route, so the search is a shortest-path search over the positions where some shard begins or
ends; what ranks a route is ``sum over hops of layers x layer_s x (load + 1) / reputation + link``, or
what a policy learned of speeds and links.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshnet.domain.candidates import (
    Candidate,
    candidate_groups,
    claimed_layer_s,
    enumerate_routes,
    make_candidate,
    unmeasured_link_s,
    usable_load,
    usable_reputation,
)
from meshnet.domain.ids import ModelKey
from meshnet.domain.nodes import Node
from meshnet.domain.routes import MAX_HOPS, make_hop, make_route

MAX_SEARCHED = 10
"""Routes one search keeps. Raising it lets load spread wider and makes every choice slower, in proportion."""
EXTRA_NODES = 2
"""Nodes on none of the best routes that a search adds a route for; which ones turns with ``turn``."""
EDGE_WIDTH = 4
"""Nodes considered for the same range of layers, fastest first. Raising it matters only among many like nodes."""
MIN_REPUTATION = 0.01
"""A node that always fails counts as a hundred times slower, not as infinitely slow: the last holder stays usable."""


HopSpeed = Callable[[Node], tuple[float, float]]
"""Of a node as loaded now: seconds per token and layer, and seconds per token for the link."""


def claimed_speed(node: Node) -> tuple[float, float]:
    """What the benchmark claims, times the queue; a link, and the relay's trip where it leads through one."""
    return claimed_layer_s(node) * (usable_load(node) + 1), unmeasured_link_s(node)


@dataclass(frozen=True, slots=True)
class _Path:
    """Hops from a position on: their seconds per token, the nodes used as bits, (node index, first, past-the-end)."""

    seconds: float
    used: int
    steps: tuple[tuple[int, int, int], ...]


_START = _Path(0.0, 0, ())


def k_best_routes(
    nodes: Sequence[Node],
    model_key: ModelKey,
    turn: int = 0,
    speed: HopSpeed = claimed_speed,
    limit: int = MAX_SEARCHED,
) -> list[Candidate]:
    """At most ``limit`` routes, fastest first by ``speed`` (a policy passes what it learned), then up to EXTRA_NODES
    routes through nodes on none of them: with a ``turn`` that rises by one from search to search every node that can
    serve is on a candidate again and again. Priors are harmonic, from the benchmarks. Not empty whenever a complete
    route exists."""
    found: list[tuple[float, Candidate]] = []
    for group in candidate_groups(nodes, model_key):
        search = _Search(group, speed)
        best = search.best(limit)
        for path in [*best, *search.detours(best, turn)]:
            found.append((path.seconds, search.candidate(path)))
    if not found:
        # The search forbids a node twice only after ranking, so in odd meshes it may miss what greedy finds.
        return [make_candidate(c.route, {n.node_id: n for n in nodes}) for c in enumerate_routes(nodes, model_key)]
    found.sort(key=lambda item: (item[0], item[1].signature))
    return [candidate for _, candidate in found]


class _Search:
    """One group's positions and costs; ``nodes`` are sorted by cost per layer, and indices point into that."""

    def __init__(self, group: Sequence[Node], speed: HopSpeed) -> None:
        speeds = {node.node_id: speed(node) for node in group}
        costs = {n.node_id: speeds[n.node_id][0] / max(usable_reputation(n), MIN_REPUTATION) for n in group}
        self.nodes = sorted(group, key=lambda node: (costs[node.node_id], node.node_id))
        self._costs = [costs[node.node_id] for node in self.nodes]
        self._links = [speeds[node.node_id][1] for node in self.nodes]
        bounds = {0} | {n.shard.start for n in group} | {n.shard.end + 1 for n in group}
        self._positions = sorted(bounds)
        self._n_layers = group[0].n_layers
        self._edges = self._make_edges()
        self._suffixes: dict[int, list[_Path]] = {}

    def best(self, limit: int) -> list[_Path]:
        """The fastest paths from layer 0."""
        self._suffixes = {self._n_layers: [_START]}
        for position in reversed(self._positions):
            if position < self._n_layers:
                self._suffixes[position] = self._extend(position, limit)
        return [path for path in self._suffixes[0] if len(path.steps) <= MAX_HOPS]

    def detours(self, best: Sequence[_Path], turn: int) -> list[_Path]:
        """For EXTRA_NODES of the nodes that ``best`` leaves out, taken in turn, the fastest path through each."""
        used = 0
        for path in best:
            used |= path.used
        missing = sorted((i for i in range(len(self.nodes)) if not used >> i & 1), key=lambda i: self.nodes[i].node_id)
        if not missing:
            return []
        prefixes = self._prefixes()
        picked = {missing[(turn * EXTRA_NODES + k) % len(missing)] for k in range(EXTRA_NODES)}
        paths = [self._through(index, prefixes) for index in sorted(picked)]
        return [path for path in paths if path is not None and len(path.steps) <= MAX_HOPS]

    def candidate(self, path: _Path) -> Candidate:
        chosen = [self.nodes[index] for index, _, _ in path.steps]
        hops = [make_hop(node, first, past - 1) for node, (_, first, past) in zip(chosen, path.steps, strict=True)]
        return make_candidate(make_route(chosen, hops), {node.node_id: node for node in chosen})

    def _make_edges(self) -> dict[int, list[tuple[int, int, float]]]:
        """Per position the (node index, past-the-end position, seconds) of hops that may begin there, at most
        EDGE_WIDTH a pair of positions. Handing over before a shard ends is worth a hop only to a faster
        node: with a slower one, going on to the end is never worse."""
        edges: dict[int, list[tuple[int, int, float]]] = {}
        reach = [(i, n.shard.start, n.shard.end + 1) for i, n in enumerate(self.nodes)]
        fastest = {p: next((i for i, start, end in reach if start <= p < end), len(reach)) for p in self._positions}
        for at, position in enumerate(self._positions[:-1]):
            later = self._positions[at + 1 :]
            width = [0] * len(later)
            edges[position] = found = []
            for index, start, end in reach:
                if not start <= position < end:
                    continue
                for number, past in enumerate(later):
                    if past > end:
                        break
                    if width[number] < EDGE_WIDTH and (past == end or fastest[past] < index):
                        width[number] += 1
                        found.append((index, past, self._seconds(index, position, past)))
        return edges

    def _extend(self, position: int, limit: int) -> list[_Path]:
        """The ``limit`` fastest of all edges here followed by all suffixes; a lazy merge, as suffixes are sorted."""
        edges = self._edges[position]
        suffixes = self._suffixes
        heap = [
            (seconds + suffix[0].seconds, number, 0)
            for number, (_, past, seconds) in enumerate(edges)
            if (suffix := suffixes.get(past))
        ]
        heapq.heapify(heap)
        paths: list[_Path] = []
        while heap and len(paths) < limit:
            seconds, number, rank = heap[0]
            index, past, first = edges[number]
            suffix = suffixes[past]
            if rank + 1 < len(suffix):
                heapq.heapreplace(heap, (first + suffix[rank + 1].seconds, number, rank + 1))
            else:
                heapq.heappop(heap)
            if not suffix[rank].used >> index & 1:
                steps = ((index, position, past), *suffix[rank].steps)
                paths.append(_Path(seconds, suffix[rank].used | 1 << index, steps))
        return paths

    def _prefixes(self) -> dict[int, _Path]:
        """Per position the fastest path from layer 0 that uses no node twice, as far as one-best search sees."""
        prefixes = {0: _START}
        for position in self._positions[:-1]:
            prefix = prefixes.get(position)
            if prefix is None:
                continue
            for index, past, step_s in self._edges[position]:
                seconds = prefix.seconds + step_s
                known = prefixes.get(past)
                if not prefix.used >> index & 1 and (known is None or seconds < known.seconds):
                    steps = (*prefix.steps, (index, position, past))
                    prefixes[past] = _Path(seconds, prefix.used | 1 << index, steps)
        return prefixes

    def _through(self, index: int, prefixes: dict[int, _Path]) -> _Path | None:
        shard, bit = self.nodes[index].shard, 1 << index
        inside = [p for p in self._positions if shard.start <= p <= shard.end + 1]
        best: _Path | None = None
        for at, first in enumerate(inside[:-1]):
            prefix = prefixes.get(first)
            if prefix is None or prefix.used & bit:
                continue
            for past in inside[at + 1 :]:
                here = prefix.seconds + self._seconds(index, first, past)
                for suffix in self._suffixes.get(past, ()):
                    if suffix.used & (prefix.used | bit):
                        continue
                    if best is None or here + suffix.seconds < best.seconds:
                        steps = (*prefix.steps, (index, first, past), *suffix.steps)
                        best = _Path(here + suffix.seconds, prefix.used | bit | suffix.used, steps)
                    break
        return best

    def _seconds(self, index: int, first: int, past: int) -> float:
        tail = self.nodes[index].tail_layers if past == self._n_layers else 0.0
        return (past - first + tail) * self._costs[index] + self._links[index]
