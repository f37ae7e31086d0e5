"""Policies that know routes only as wholes: ``greedy``, ``eps``, ``thompson``, ``p2c``, ``random``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshnet.domain.candidates import Candidate, harmonic_tps
from meshnet.domain.hop_stats import PRIOR_VARIANCE, SAMPLE_VARIANCE
from meshnet.domain.policies.drawn import Odds
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.odds import beat_probabilities
from meshnet.domain.routing_stats import ArmStats

EPSILON = 0.05
"""Share of requests that ``eps`` spends on a route drawn evenly; without end, so it costs that share of the gap."""
MIN_TPS = 1e-9
"""Stands for a prior of 0 where a logarithm is taken."""


def greedy_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """Always the best estimate: never learns of a route that looks worse than it is."""
    scores = _estimates(candidates, memory, now)
    best = _best(scores)
    return Odds(scores, {signature: float(signature == best) for signature in scores})


def eps_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """The best estimate, but with EPSILON any candidate evenly."""
    scores = _estimates(candidates, memory, now)
    best = _best(scores)
    even = EPSILON / len(scores)
    return Odds(scores, {s: even + (1.0 - EPSILON if s == best else 0.0) for s in scores})


def thompson_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """As often as it may be the best, by each route's own decayed samples (variance ``noise / mass``)."""
    arms = _arms(candidates, memory, now)
    scores = {c.signature: _estimate(c, arm) for c, arm in zip(candidates, arms, strict=True)}
    best = _best(scores)
    variances = {
        c.signature: SAMPLE_VARIANCE / (arm.mass + SAMPLE_VARIANCE / PRIOR_VARIANCE)
        for c, arm in zip(candidates, arms, strict=True)
    }
    top = math.log(scores[best])
    probabilities = beat_probabilities(
        [max(top - math.log(score), 0.0) for score in scores.values()],
        [variances[s] + variances[best] for s in scores],
        list(scores).index(best),
    )
    return Odds(scores, dict(zip(scores, probabilities, strict=True)))


def p2c_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """The better of two different candidates drawn evenly: rank j of n, 0 the best, wins ``2(n-1-j) / (n(n-1))``."""
    scores = _estimates(candidates, memory, now)
    ranked = sorted(scores, key=lambda s: (-scores[s], s))
    n = len(ranked)
    if n == 1:
        return Odds(scores, {ranked[0]: 1.0})
    return Odds(scores, {s: 2.0 * (n - 1 - rank) / (n * (n - 1)) for rank, s in enumerate(ranked)})


def random_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """Every candidate alike: the yardstick."""
    scores = _estimates(candidates, memory, now)
    return Odds(scores, {signature: 1.0 / len(scores) for signature in scores})


def _arms(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> list[ArmStats]:
    return [memory.arms.arm(c.route.model_key, c.signature, now) for c in candidates]


def _estimates(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> dict[str, float]:
    return {c.signature: _estimate(c, arm) for c, arm in zip(candidates, _arms(candidates, memory, now), strict=True)}


def _estimate(candidate: Candidate, arm: ArmStats) -> float:
    """Learned tokens/s where there are any, slowed by the load of now as the prior is; else the prior."""
    if arm.tps is None:
        return max(candidate.prior_tps, MIN_TPS)
    learned = arm.tps * arm.success_share
    if any(candidate.loads):
        hops, even = candidate.route.hops, (1.0,) * len(candidate.loads)
        now_tps = harmonic_tps(hops, candidate.loads, even, candidate.layer_s)
        learned *= now_tps / harmonic_tps(hops, (0,) * len(candidate.loads), even, candidate.layer_s)
    return max(learned, MIN_TPS)


def _best(scores: dict[str, float]) -> str:
    return min(scores, key=lambda s: (-scores[s], s))
