"""Who plays in the simulation: the real policies behind ``Router``, and yardsticks that only the benchmark knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from meshnet.bench.simulation import MODEL, World, best_route
from meshnet.domain.candidates import Candidate, make_candidate
from meshnet.domain.decayed import decay
from meshnet.domain.nodes import Node
from meshnet.domain.policies import Router
from meshnet.domain.routes import Route
from meshnet.domain.routing import POLICY_NAMES, Outcome, RoutingConfig, TopologyChange

SEARCH_EVERY_S = 60.0
"""Policies that know whole routes keep their candidates this long: new arms all the time would never be measured."""
HALF_LIFE_S = 600.0

PLAYER_NAMES = (*POLICY_NAMES, "round-robin", "ucb1", "d-ucb", "oracle")
EXTRA_PLAYERS = ("hop-e2e", "adr-sharp", "adr-random")
"""hop without hop timings; adr with explore 0.05 and alpha 8; evenly among the record's candidates."""


class Player(Protocol):
    def choose(self, nodes: Sequence[Node], now: float, turn: int, rng: Random) -> Candidate: ...

    def observe(self, outcome: Outcome) -> None: ...

    def on_topology(self, change: TopologyChange) -> None: ...


def make_player(name: str, world: World) -> Player:
    """A fresh player of PLAYER_NAMES or EXTRA_PLAYERS."""
    match name:
        case "oracle":
            return _Oracle(world)
        case "round-robin":
            return _RoundRobin()
        case "ucb1":
            return _Ucb(math.inf)
        case "d-ucb":
            return _Ucb(HALF_LIFE_S)
        case "hop-e2e":
            return _RouterPlayer("hop", keep_timings=False)
        case "adr-sharp":
            return _RouterPlayer("adr", config=RoutingConfig(explore_share=0.05, weight_alpha=8.0))
        case "adr-random":
            return _RouterPlayer("random", candidates_of="adr")
    return _RouterPlayer(name)


def _by_signature(candidates: Sequence[Candidate], route: Route) -> Candidate:
    signature = route.signature
    return next(c for c in candidates if c.signature == signature)


class _Kept:
    """The k best routes by benchmark, searched anew when nodes change or SEARCH_EVERY_S is over; loads are live."""

    def __init__(self, router: Router, policy: str) -> None:
        self._router, self._policy = router, policy
        self._kept: list[Candidate] = []
        self._key: tuple[int, tuple[str, ...]] = (-1, ())

    def candidates(self, nodes: Sequence[Node], now: float) -> list[Candidate]:
        key = (int(now / SEARCH_EVERY_S), tuple(node.node_id for node in nodes))
        by_id = {node.node_id: node for node in nodes}
        if key != self._key:
            idle = [replace(node, in_flight=0) for node in nodes]
            self._kept, self._key = self._router.propose(idle, MODEL, key[0], self._policy), key
        return [make_candidate(candidate.route, by_id) for candidate in self._kept]


class _RouterPlayer:
    """A policy of ours, through the same door as the tracker's planner."""

    def __init__(
        self,
        policy: str,
        keep_timings: bool = True,
        config: RoutingConfig | None = None,
        candidates_of: str | None = None,
    ) -> None:
        self._router = Router(config or RoutingConfig())
        self._policy = policy
        self._candidates_of = candidates_of or policy
        self._keep_timings = keep_timings
        self._kept = _Kept(self._router, policy)

    def choose(self, nodes: Sequence[Node], now: float, turn: int, rng: Random) -> Candidate:
        if self._candidates_of in ("adr", "hop"):
            candidates = self._router.propose(nodes, MODEL, turn, self._candidates_of)
        else:
            candidates = self._kept.candidates(nodes, now)
        return _by_signature(candidates, self._router.choose(candidates, now, rng, self._policy).route)

    def observe(self, outcome: Outcome) -> None:
        self._router.observe(outcome if self._keep_timings else replace(outcome, hop_timings=()))

    def on_topology(self, change: TopologyChange) -> None:
        self._router.on_topology(change)


class _Oracle:
    """Knows every true speed and load; greedy for the request at hand, so many requests can beat it a little."""

    def __init__(self, world: World) -> None:
        self._world = world

    def choose(self, nodes: Sequence[Node], now: float, turn: int, rng: Random) -> Candidate:
        return make_candidate(best_route(self._world, nodes, now), {node.node_id: node for node in nodes})

    def observe(self, outcome: Outcome) -> None:
        pass

    def on_topology(self, change: TopologyChange) -> None:
        pass


class _RoundRobin:
    def __init__(self) -> None:
        self._kept = _Kept(Router(RoutingConfig()), "random")

    def choose(self, nodes: Sequence[Node], now: float, turn: int, rng: Random) -> Candidate:
        candidates = self._kept.candidates(nodes, now)
        return candidates[turn % len(candidates)]

    def observe(self, outcome: Outcome) -> None:
        pass

    def on_topology(self, change: TopologyChange) -> None:
        pass


class _Ucb:
    """UCB1 on tokens/s relative to the best mean (Auer et al. 2002), ``mean + sqrt(2 ln N / n)``; with a finite
    half-life its sums decay: discounted UCB (Garivier and Moulines 2008, bonus scaled by xi = 0.6)."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._xi = 2.0 if math.isinf(half_life_s) else 0.6
        self._kept = _Kept(Router(RoutingConfig()), "random")
        self._sums: dict[str, tuple[float, float, float]] = {}

    def choose(self, nodes: Sequence[Node], now: float, turn: int, rng: Random) -> Candidate:
        candidates = self._kept.candidates(nodes, now)
        sums = {c.signature: self._decayed(c.signature, now) for c in candidates}
        total = math.log(max(sum(n for _, n in sums.values()), 1.0) + 1.0)
        best = max((s / n for s, n in sums.values() if n > 1e-9), default=1.0)

        def index(candidate: Candidate) -> tuple[float, float]:
            reward, n = sums[candidate.signature]
            if n <= 1e-9:
                return math.inf, candidate.prior_tps
            return reward / n / best + math.sqrt(self._xi * total / n), candidate.prior_tps

        return max(candidates, key=index)

    def observe(self, outcome: Outcome) -> None:
        now = outcome.finished_at
        reward, n = self._decayed(outcome.signature, now)
        tps = outcome.completion_tokens / outcome.duration_s if outcome.status == "ok" else 0.0
        self._sums[outcome.signature] = (reward + tps, n + 1.0, now)

    def on_topology(self, change: TopologyChange) -> None:
        pass

    def _decayed(self, signature: str, now: float) -> tuple[float, float]:
        reward, n, stamp = self._sums.get(signature, (0.0, 0.0, now))
        kept = 1.0 if math.isinf(self._half_life_s) else decay(now - stamp, self._half_life_s)
        return reward * kept, n * kept
