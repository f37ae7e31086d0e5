"""A simulated mesh for routing policies: true speeds nobody is told, load that slows, calls that end later.

One request's seconds per token on a hop are ``layers x layer_s x (1 + LOAD_SLOWDOWN x calls in flight) x noise`` plus
the hop's link. All dice of a world (mesh, arrivals, lengths, noise, failures) are thrown before any policy plays, so
that policies meet the same requests. Simplification: what a call costs is fixed when it starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from meshnet.domain.ids import ModelKey, NodeId, Revision, Wallet
from meshnet.domain.nodes import Node
from meshnet.domain.route_search import k_best_routes
from meshnet.domain.routes import Route
from meshnet.domain.shards import Shard

MODEL = ModelKey("simulated")
N_LAYERS = 40
"""Of the model the mesh is for."""
LOAD_SLOWDOWN = 0.25
"""Per call already on a node: batching shares the weights' trip through memory, so far less than a full share each.
At 1 the loads played here would leave no shared tail a finite queue."""
PREFILL_SHARE = 0.05
"""Seconds a prompt token costs, relative to a decoded one."""
NOISE_SIGMA = 0.15
"""Of ln(seconds) of one call on one hop."""
CLAIM_SIGMA = 0.2
"""Of ln(claimed / true tokens per second): honest benchmarks are off by a fifth."""
DRIFT_STEP_S = 60.0
DRIFT_SIGMA = 0.1
"""Of a node's ln(seconds) per DRIFT_STEP_S: over an hour a factor of two either way."""

_TIERS = ((0, 13), (11, 26), (24, 39))
_PER_TIER = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One chat to come. ``noise`` and ``luck`` are by node index: a factor on seconds, a uniform against failure."""

    at_s: float
    tokens: int
    prompt_tokens: int
    noise: tuple[float, ...]
    luck: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class World:
    """A mesh and its requests over ``duration_s``. The lists run along ``nodes``."""

    nodes: tuple[Node, ...]
    layer_s: tuple[float, ...]
    link_s: tuple[float, ...]
    requests: tuple[Request, ...]
    duration_s: float
    slow_node: int | None = None
    """Runs five times slower during the middle third."""
    failing_node: int | None = None
    """Loses 30 % of its calls at the first token."""
    drift: tuple[tuple[float, ...], ...] = ()
    """Per node the ln(seconds) offset of each DRIFT_STEP_S."""
    absences: tuple[tuple[float, float, int], ...] = ()
    """(from, until, node index) of nodes that are away."""

    def true_layer_s(self, index: int, now: float) -> float:
        """Seconds per token and layer of the idle node."""
        seconds = self.layer_s[index]
        if index == self.slow_node and self.duration_s / 3 <= now < 2 * self.duration_s / 3:
            seconds *= 5.0
        if self.drift:
            steps = self.drift[index]
            seconds *= math.exp(steps[min(int(now / DRIFT_STEP_S), len(steps) - 1)])
        return seconds

    def is_away(self, index: int, now: float) -> bool:
        return any(start <= now < end and index == node for start, end, node in self.absences)

    def failure_share(self, index: int) -> float:
        return 0.3 if index == self.failing_node else 0.0


def make_world(scenario: str, load: float, seed: int, duration_s: float) -> World:
    """The world of a scenario at ``load`` requests/s, the same for the same arguments."""
    rng = Random(f"{scenario}/{load}/{seed}")
    shards = _shards(rng)
    spread = 60.0 if scenario == "spread-60x" else 4.0
    layer_s = tuple(0.001 * spread ** rng.random() for _ in shards)
    claims = [math.exp(rng.gauss(0.0, CLAIM_SIGMA)) for _ in shards]
    if scenario == "liar":
        claims[max(range(len(shards)), key=lambda i: layer_s[i])] = 3.0
    nodes = tuple(
        _node(i, shard, claim / (seconds * len(shard)))
        for i, (shard, seconds, claim) in enumerate(zip(shards, layer_s, claims, strict=True))
    )
    link_s = tuple(rng.uniform(0.002, 0.02) for _ in shards)
    world = World(nodes, layer_s, link_s, _requests(rng, scenario, load, duration_s, len(nodes)), duration_s)
    return _with_trouble(world, scenario, rng)


def _shards(rng: Random) -> list[Shard]:
    """Three tiers of overlapping shards with uneven borders. No machine holds everything: greedy completion would
    lead every route of the default over it."""
    shards: list[Shard] = []
    for first, last in _TIERS:
        for _ in range(_PER_TIER):
            start = 0 if first == 0 else first - rng.randrange(4)
            end = last if last == N_LAYERS - 1 else last + rng.randrange(4)
            shards.append(Shard(start, end))
    return shards


def _node(index: int, shard: Shard, benchmark_tps: float) -> Node:
    wallet = Wallet(f"node{index}")
    return Node(
        node_id=NodeId(f"{wallet}.{shard}"),
        wallet=wallet,
        url="http://simulated",
        model_key=MODEL,
        revision=Revision("r"),
        n_layers=N_LAYERS,
        shard=shard,
        benchmark_tokens_per_sec=benchmark_tps,
    )


def _requests(rng: Random, scenario: str, load: float, duration_s: float, n_nodes: int) -> tuple[Request, ...]:
    requests: list[Request] = []
    at_s = rng.expovariate(load)
    while at_s < duration_s:
        tokens = rng.choice((8, 8, 8, 8, 800)) if scenario == "lengths" else rng.randrange(16, 161)
        noise = tuple(math.exp(rng.gauss(0.0, NOISE_SIGMA)) for _ in range(n_nodes))
        luck = tuple(rng.random() for _ in range(n_nodes))
        requests.append(Request(at_s, tokens, rng.randrange(20, 400), noise, luck))
        at_s += rng.expovariate(load)
    return tuple(requests)


def _with_trouble(world: World, scenario: str, rng: Random) -> World:
    match scenario:
        case "abrupt":
            return replace(world, slow_node=_key_node(world))
        case "failing-hop":
            return replace(world, failing_node=_key_node(world))
        case "drift":
            steps = int(world.duration_s / DRIFT_STEP_S) + 1
            return replace(world, drift=tuple(_walk(rng, steps) for _ in world.nodes))
        case "churn":
            # Every five minutes another node is away for five; never two at once, so that routes always exist.
            starts = range(300, int(world.duration_s), 300)
            return replace(world, absences=tuple((s, s + 300.0, rng.randrange(len(world.nodes))) for s in starts))
    return world


def _walk(rng: Random, steps: int) -> tuple[float, ...]:
    offset, offsets = 0.0, []
    for _ in range(steps):
        offsets.append(offset)
        offset += rng.gauss(0.0, DRIFT_SIGMA)
    return tuple(offsets)


def _key_node(world: World) -> int:
    """The node that works longest in the truly best idle route."""
    index = {node.node_id: i for i, node in enumerate(world.nodes)}
    best = best_route(world, world.nodes, 0.0)
    longest = max(best.hops, key=lambda h: (h.end_layer - h.start_layer + 1) * world.layer_s[index[h.node_id]])
    return index[longest.node_id]


def route_token_s(world: World, route: Route, loads: Sequence[int], now: float) -> float:
    """True seconds per token of a route with these calls in flight per hop, without noise."""
    total = 0.0
    for hop, load in zip(route.hops, loads, strict=True):
        index = node_index(hop.node_id)
        layers = hop.end_layer - hop.start_layer + 1
        seconds = layers * world.true_layer_s(index, now) * (1.0 + LOAD_SLOWDOWN * load)
        total += seconds / (1.0 - world.failure_share(index)) + world.link_s[index]
    return total


def best_route(world: World, nodes: Sequence[Node], now: float) -> Route:
    """The clairvoyant's myopic choice: fastest in truth for one more call, given what is in flight."""
    candidates = k_best_routes(nodes, MODEL, speed=lambda node: _true_speed(world, node, now))
    return min(candidates, key=lambda c: route_token_s(world, c.route, c.loads, now)).route


def _true_speed(world: World, node: Node, now: float) -> tuple[float, float]:
    """As loaded now; the reputation cancels the search's own division by what was seen of failures."""
    index = node_index(node.node_id)
    layer_s = world.true_layer_s(index, now) * (1.0 + LOAD_SLOWDOWN * node.load)
    return layer_s / (1.0 - world.failure_share(index)) * node.reputation, world.link_s[index]


def node_index(node_id: str) -> int:
    return int(node_id[4 : node_id.index(".")])
