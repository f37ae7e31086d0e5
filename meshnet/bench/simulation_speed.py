"""How long decisions take: choosing among cached candidates, cold enumeration, the table: ``--speed`` of ``routing``.

Times are the thread's own CPU time, so that a machine busy with other things does not count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from random import Random

from meshnet.bench.simulation import MODEL, N_LAYERS
from meshnet.domain.candidates import Candidate, make_candidate
from meshnet.domain.ids import Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.policies import Router
from meshnet.domain.routes import Hop, make_route
from meshnet.domain.routing import POLICY_NAMES, HopTiming, Outcome, RoutingConfig
from meshnet.domain.shards import Shard

SIZES = (200, 1000)
"""Nodes of the meshes enumerated."""
N_ARMS = 200
"""Of the table measured."""
CHOICES_PER_REPEAT = 100
"""A choice takes microseconds, an enumeration milliseconds: so many more of it are timed."""


def speeds(repeats: int = 50, sizes: Sequence[int] = SIZES) -> list[dict[str, str | float]]:
    """Rows ``{"measure", "p50_us", "p99_us"}``."""
    rows: list[dict[str, str | float]] = []
    for name in POLICY_NAMES:
        router, rng, candidates = _taught(name), Random(1), _cached(name)
        rows.append(
            _timed(
                f"choose {name}",
                lambda r=router, c=candidates, n=name, g=rng: r.choose(c, 100.0, g, n),
                repeats * CHOICES_PER_REPEAT,
            )
        )
    for size in sizes:
        nodes = make_swarm(size)
        for name in ("adr", "hop"):
            router = _taught(name)
            propose = lambda r=router, n=name, s=nodes: r.propose(s, MODEL, 1, n)  # noqa: E731
            rows.append(_timed(f"enumerate {name}, {size} nodes", propose, repeats))
    for name in ("adr", "hop"):
        router, arms = _taught(name), _many_arms()
        rows.append(
            _timed(f"table {name}, {N_ARMS} arms", lambda r=router, a=arms, n=name: r.table(a, 100.0, n), repeats)
        )
    return rows


def make_swarm(size: int) -> list[Node]:
    """Nodes with random shards, one in five a head, speeds over a factor of fifty."""
    rng = Random(size)
    nodes: list[Node] = []
    for i in range(size):
        start = 0 if i % 5 == 0 else rng.randrange(N_LAYERS)
        nodes.append(_node(i, Shard(start, min(N_LAYERS - 1, start + rng.randrange(4, 20))), rng.uniform(1.0, 50.0)))
    return nodes


def _node(index: int, shard: Shard, tps: float) -> Node:
    wallet = Wallet(f"node{index}")
    node_id = make_node_id(wallet, shard)
    return Node(node_id, wallet, "", MODEL, Revision("r"), N_LAYERS, shard, benchmark_tokens_per_sec=tps)


def _cached(name: str) -> list[Candidate]:
    return Router(RoutingConfig()).propose(make_swarm(20), MODEL, 1, name)


def _many_arms() -> list[Candidate]:
    """Two hops each, cut at 20 pairs of 10 heads and tails."""
    arms: list[Candidate] = []
    for i in range(N_ARMS):
        head, tail = _node(i, Shard(0, 19), 10.0), _node(N_ARMS + i % 10, Shard(20, N_LAYERS - 1), 10.0)
        hops = [Hop(head.node_id, "", 0, 19), Hop(tail.node_id, "", 20, N_LAYERS - 1)]
        arms.append(make_candidate(make_route([head, tail], hops), {head.node_id: head, tail.node_id: tail}))
    return arms


def _taught(name: str) -> Router:
    """A router that measured every cached candidate and every arm once."""
    router = Router(RoutingConfig())
    for candidate in [*_cached(name), *_many_arms()]:
        timings = tuple(HopTiming(node_id, 100, 1.0) for node_id in candidate.route.node_ids)
        seconds = 1.0 * len(timings) + 0.1
        router.observe(
            Outcome(
                MODEL,
                candidate.route,
                candidate.signature,
                0,
                "ok",
                99.0 - seconds,
                99.0 - seconds + 0.05,
                99.0,
                101,
                10,
                timings,
                candidate.loads,
                candidate.layer_s,
            )
        )
    return router


def _timed(measure: str, action: Callable[[], object], times: int) -> dict[str, str | float]:
    spent: list[float] = []
    action()
    gc.collect()  # What earlier measurements left is not this one's to clear away.
    for _ in range(times):
        began = time.thread_time()
        action()
        spent.append(time.thread_time() - began)
    spent.sort()
    p50, p99 = spent[len(spent) // 2], spent[min(int(0.99 * len(spent)), len(spent) - 1)]
    return {"measure": measure, "p50_us": round(p50 * 1e6, 1), "p99_us": round(p99 * 1e6, 1)}
