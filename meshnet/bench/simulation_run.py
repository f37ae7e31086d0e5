"""One policy plays one world: arrivals in order, outcomes when they end, as a tracker would see them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from random import Random

from meshnet.bench.simulation import (
    LOAD_SLOWDOWN,
    MODEL,
    PREFILL_SHARE,
    Request,
    World,
    best_route,
    node_index,
    route_token_s,
)
from meshnet.bench.simulation_players import Player, make_player
from meshnet.domain.candidates import Candidate
from meshnet.domain.nodes import Node
from meshnet.domain.routes import Hop
from meshnet.domain.routing import HopTiming, Outcome, TopologyChange
from meshnet.domain.routing_stats import Reputation

SLOW_FACTOR = 2.0
"""A route is slow if it takes over twice the truly best route's seconds per token, both idle."""
REPUTATION_HALF_LIFE_S = 600.0
MAX_ATTEMPTS = 4
"""Of one request; the last one takes what it gets."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a policy made of a world."""

    tokens_per_s: float
    """Tokens over the seconds their requests took, failed attempts included."""
    p95_s_per_token: float
    slow_share: float


def play(world: World, player_name: str, seed: int) -> Score:
    """Deterministic in its arguments."""
    run = _Run(world, make_player(player_name, world), Random(f"player/{seed}"))
    for turn, request in enumerate(world.requests):
        run.serve(request, turn)
    return run.score()


class _Run:
    def __init__(self, world: World, player: Player, rng: Random) -> None:
        self._world, self._player, self._rng = world, player, rng
        self._nodes = list(world.nodes)
        self._pending: list[tuple[float, int, Outcome]] = []
        self._reputation = Reputation(REPUTATION_HALF_LIFE_S)
        self._away: set[int] = set()
        self._epoch = 0
        self._ordinal = 0
        self._best_idle: tuple[object, float] = (None, 0.0)
        self._seconds: list[float] = []
        self._tokens: list[int] = []
        self._slow = 0

    def serve(self, request: Request, turn: int) -> None:
        """All attempts of one request."""
        now, avoid = request.at_s, set[str]()
        for attempt in range(MAX_ATTEMPTS):
            self._finish_until(now)
            self._follow_topology(now)
            nodes = self._usable(avoid) or self._usable(set())
            chosen = self._player.choose(nodes, now, turn, self._rng)
            outcome = self._attempt(chosen, request, now, may_fail=attempt + 1 < MAX_ATTEMPTS)
            self._reserve(chosen, 1)
            self._ordinal += 1
            heapq.heappush(self._pending, (outcome.finished_at, self._ordinal, outcome))
            now = outcome.finished_at
            if outcome.failed_node is None:
                self._note(request, chosen, now)
                return
            avoid.add(outcome.failed_node)

    def score(self) -> Score:
        per_token = sorted(s / t for s, t in zip(self._seconds, self._tokens, strict=True))
        n = len(per_token)
        return Score(sum(self._tokens) / sum(self._seconds), per_token[min(int(0.95 * n), n - 1)], self._slow / n)

    def _attempt(self, chosen: Candidate, request: Request, now: float, may_fail: bool) -> Outcome:
        """What will come of a call that starts now on the chosen route."""
        world = self._world
        steps = max(request.tokens - 1, 1)
        token_s, idle_s, timings = 0.0, 0.0, []
        failed = None
        for hop, load in zip(chosen.route.hops, chosen.loads, strict=True):
            index = node_index(hop.node_id)
            compute = _layers(hop) * world.true_layer_s(index, now) * request.noise[index]
            queue = compute * LOAD_SLOWDOWN * load
            token_s += compute + queue + world.link_s[index]
            idle_s += compute + queue
            timings.append(HopTiming(hop.node_id, steps, compute * steps, queue * steps))
            if may_fail and failed is None and request.luck[index] < world.failure_share(index):
                failed = hop.node_id
        first_token_at = now + request.prompt_tokens * PREFILL_SHARE * idle_s + token_s
        return Outcome(
            model_key=MODEL,
            route=chosen.route,
            signature=chosen.signature,
            epoch=self._epoch,
            status="ok" if failed is None else "failed",
            started_at=now,
            first_token_at=first_token_at,
            finished_at=first_token_at + (token_s * (request.tokens - 1) if failed is None else 0.0),
            completion_tokens=request.tokens if failed is None else 1,
            prompt_tokens=request.prompt_tokens,
            hop_timings=tuple(timings),
            loads=chosen.loads,
            claimed_layer_s=chosen.layer_s,
            failed_node=failed,
        )

    def _finish_until(self, now: float) -> None:
        while self._pending and self._pending[0][0] <= now:
            _, _, outcome = heapq.heappop(self._pending)
            for hop in outcome.route.hops:
                self._change_in_flight(node_index(hop.node_id), -1)
                if outcome.failed_node in (None, hop.node_id):
                    self._reputation.observe(hop.node_id, outcome.failed_node is None, outcome.finished_at)
            self._player.observe(outcome)

    def _follow_topology(self, now: float) -> None:
        away = {i for i in range(len(self._nodes)) if self._world.is_away(i, now)} if self._world.absences else set()
        for index in sorted(away ^ self._away):
            self._epoch += 1
            kind = "leave" if index in away else "join"
            self._player.on_topology(TopologyChange(MODEL, self._nodes[index].node_id, kind))
        self._away = away
        if self._world.failing_node is not None:
            for index, node in enumerate(self._nodes):
                self._nodes[index] = replace(node, reputation=self._reputation.value(node.node_id, now))

    def _usable(self, avoid: set[str]) -> list[Node]:
        nodes = [n for i, n in enumerate(self._nodes) if i not in self._away and n.node_id not in avoid]
        # Four to a tier: one away and up to three avoided leave a route, or serve() asks all of them again.
        return nodes

    def _reserve(self, chosen: Candidate, change: int) -> None:
        for hop in chosen.route.hops:
            self._change_in_flight(node_index(hop.node_id), change)

    def _change_in_flight(self, index: int, change: int) -> None:
        node = self._nodes[index]
        self._nodes[index] = replace(node, in_flight=node.in_flight + change)

    def _note(self, request: Request, chosen: Candidate, finished_at: float) -> None:
        self._seconds.append(finished_at - request.at_s)
        self._tokens.append(request.tokens)
        now = request.at_s
        idle = (0,) * len(chosen.loads)
        if route_token_s(self._world, chosen.route, idle, now) > SLOW_FACTOR * self._best_idle_token_s(now):
            self._slow += 1

    def _best_idle_token_s(self, now: float) -> float:
        """Of the nodes present, kept while nothing changes."""
        world = self._world
        speeds = tuple(world.true_layer_s(i, now) for i in range(len(self._nodes)))
        key = (speeds, tuple(sorted(self._away)))
        if key != self._best_idle[0]:
            idle = [replace(n, in_flight=0, reputation=1.0) for n in self._usable(set())]
            route = best_route(world, idle, now)
            self._best_idle = key, route_token_s(world, route, (0,) * len(route.hops), now)
        return self._best_idle[1]


def _layers(hop: Hop) -> int:
    return hop.end_layer - hop.start_layer + 1
