"""``adr``: ADR-0021's bandit, the default. Scout the unproven, else exploit in proportion to tps^alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import NoRoute
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.rows import arm_row
from meshnet.domain.routing import ArmRow, Decision, Outcome, PolicyName, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import ArmStats, RouteStatsStore


def choose_route(
    candidates: Sequence[Candidate], stats: RouteStatsStore, config: RoutingConfig, now: float, rng: Random
) -> Decision:
    """ADR-0021's ``choose_route``. No proven arm: best prior, without dice. Else, with probability explore_share while
    any arm is unproven, the least measured of these (ties by prior, then signature); otherwise a proven one with
    P proportional to (tps x success share)^alpha. Draws at most two numbers. Raises NoRoute without candidates."""
    arms = _arms(candidates, stats, now)
    proven = [c for c in candidates if arms[c.signature].status == "proven"]
    scouts = [c for c in candidates if arms[c.signature].status != "proven"]
    scores = {c.signature: _score(c, arms[c.signature]) for c in candidates}
    probabilities = _probabilities(candidates, arms, config)
    if not proven:
        chosen = min(scouts, key=_prior_order)
        why = f"no route is proven yet: best prior, {chosen.prior_tps:.3g} tokens/s"
        return Decision(chosen.route, chosen.signature, "scout", why, "adr", scores, probabilities)
    if scouts and rng.random() < config.explore_share:
        chosen = _next_scout(scouts, arms)
        arm = arms[chosen.signature]
        why = f"scouting 1 of {len(scouts)} unproven routes: {arm.status}, least measured (mass {arm.mass:.2f})"
        return Decision(chosen.route, chosen.signature, "scout", why, "adr", scores, probabilities)
    chosen = draw(proven, exploit_weights(proven, arms, config.weight_alpha), rng)
    share = probabilities[chosen.signature]
    learned = arms[chosen.signature].tps
    why = f"measured {learned:.3g} tokens/s; takes {share:.0%} of requests by tps^{config.weight_alpha:g}"
    return Decision(chosen.route, chosen.signature, "exploit", why, "adr", scores, probabilities)


class AdrPolicy:
    """ADR-0021 as a policy."""

    name: PolicyName = "adr"

    def __init__(self, config: RoutingConfig, memory: RoutingMemory) -> None:
        self._config = config
        self._memory = memory

    def choose(self, candidates: Sequence[Candidate], now: float, rng: Random) -> Decision:
        return choose_route(candidates, self._memory.arms, self._config, now, rng)

    def observe(self, outcome: Outcome) -> None:
        self._memory.observe(outcome)

    def on_topology(self, change: TopologyChange) -> None:
        self._memory.on_topology(change)

    def table(self, candidates: Sequence[Candidate], now: float) -> list[ArmRow]:
        if not candidates:
            return []
        arms = _arms(candidates, self._memory.arms, now)
        shares = _probabilities(candidates, arms, self._config)
        best = max((a.tps or 0.0 for a in arms.values() if a.status == "proven"), default=None)
        return [
            arm_row(c, arms[c.signature], best, shares[c.signature], _score(c, arms[c.signature])) for c in candidates
        ]


def exploit_weights(proven: Sequence[Candidate], arms: Mapping[str, ArmStats], alpha: float) -> list[float]:
    """``(tps x success share)^alpha`` relative to the best, so that no alpha overflows."""
    logs = [alpha * math.log(_effective_tps(arms[c.signature])) for c in proven]
    top = max(logs)
    return [math.exp(value - top) for value in logs]


def draw(candidates: Sequence[Candidate], weights: Sequence[float], rng: Random) -> Candidate:
    """One candidate with P proportional to its weight; the order of the candidates does not matter. One number."""
    ordered = sorted(zip(candidates, weights, strict=True), key=lambda pair: pair[0].signature)
    mark = rng.random() * math.fsum(weights)
    for candidate, weight in ordered:
        mark -= weight
        if mark < 0:
            return candidate
    return max(ordered, key=lambda pair: pair[1])[0]


def _arms(candidates: Sequence[Candidate], stats: RouteStatsStore, now: float) -> dict[str, ArmStats]:
    if not candidates:
        raise NoRoute("No candidate route is left to choose from. See: meshnet coverage")
    return {c.signature: stats.arm(c.route.model_key, c.signature, now) for c in candidates}


def _probabilities(
    candidates: Sequence[Candidate], arms: Mapping[str, ArmStats], config: RoutingConfig
) -> dict[str, float]:
    """Of each candidate being chosen next: the table's expected shares and the log's propensities."""
    shares = {c.signature: 0.0 for c in candidates}
    proven = [c for c in candidates if arms[c.signature].status == "proven"]
    scouts = [c for c in candidates if arms[c.signature].status != "proven"]
    if not proven:
        shares[min(scouts, key=_prior_order).signature] = 1.0
        return shares
    explore = config.explore_share if scouts else 0.0
    weights = exploit_weights(proven, arms, config.weight_alpha)
    total = math.fsum(weights)
    for candidate, weight in zip(proven, weights, strict=True):
        shares[candidate.signature] = (1.0 - explore) * weight / total
    if scouts:
        shares[_next_scout(scouts, arms).signature] = explore
    return shares


def _next_scout(scouts: Sequence[Candidate], arms: Mapping[str, ArmStats]) -> Candidate:
    return min(scouts, key=lambda c: (arms[c.signature].tries_mass, -c.prior_tps, c.signature))


def _prior_order(candidate: Candidate) -> tuple[float, str]:
    """Higher prior first, then the smaller signature, under ``min``."""
    return -candidate.prior_tps, candidate.signature


def _effective_tps(arm: ArmStats) -> float:
    return (arm.tps or 0.0) * arm.success_share


def _score(candidate: Candidate, arm: ArmStats) -> float:
    return _effective_tps(arm) if arm.status == "proven" else candidate.prior_tps
