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
    proven, scouts = _split(candidates, arms)
    weights = exploit_weights(proven, arms, config.weight_alpha)
    scores = {c.signature: _score(c, arms[c.signature]) for c in candidates}
    probabilities = _probabilities(candidates, scouts, weights, arms, config)
    if not proven:
        chosen = min(scouts, key=_prior_order)
        why = f"no route is proven yet: best prior, {chosen.prior_tps:.3g} tokens/s"
        return Decision(chosen.route, chosen.signature, "scout", why, "adr", scores, probabilities)
    if scouts and rng.random() < config.explore_share:
        chosen = _next_scout(scouts, arms)
        arm = arms[chosen.signature]
        why = f"scouting 1 of {len(scouts)} unproven routes: {arm.status}, least measured (mass {arm.mass:.2f})"
        return Decision(chosen.route, chosen.signature, "scout", why, "adr", scores, probabilities)
    signature = draw(weights, rng)
    chosen = next(c for c in proven if c.signature == signature)
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
        proven, scouts = _split(candidates, arms)
        weights = exploit_weights(proven, arms, self._config.weight_alpha)
        shares = _probabilities(candidates, scouts, weights, arms, self._config)
        best = max((a.tps or 0.0 for a in arms.values() if a.status == "proven"), default=None)
        return [
            arm_row(c, arms[c.signature], best, shares[c.signature], _score(c, arms[c.signature])) for c in candidates
        ]


def exploit_weights(proven: Sequence[Candidate], arms: Mapping[str, ArmStats], alpha: float) -> dict[str, float]:
    """``(tps x success share)^alpha`` relative to the best, so that no alpha overflows; by signature."""
    logs = {c.signature: alpha * math.log(_effective_tps(arms[c.signature])) for c in proven}
    top = max(logs.values(), default=0.0)
    return {signature: math.exp(value - top) for signature, value in logs.items()}


def draw(weights: Mapping[str, float], rng: Random) -> str:
    """One signature with P proportional to its weight, whatever their order. Draws one number."""
    mark = rng.random() * math.fsum(weights.values())
    ordered = sorted(weights)
    for signature in ordered:
        mark -= weights[signature]
        if mark < 0:
            return signature
    return max(ordered, key=weights.__getitem__)


def _split(candidates: Sequence[Candidate], arms: Mapping[str, ArmStats]) -> tuple[list[Candidate], list[Candidate]]:
    """Proven ones, and those to scout."""
    proven: list[Candidate] = []
    scouts: list[Candidate] = []
    for candidate in candidates:
        (proven if arms[candidate.signature].status == "proven" else scouts).append(candidate)
    return proven, scouts


def _arms(candidates: Sequence[Candidate], stats: RouteStatsStore, now: float) -> dict[str, ArmStats]:
    if not candidates:
        raise NoRoute("No candidate route is left to choose from. See: meshnet coverage")
    return {c.signature: stats.arm(c.route.model_key, c.signature, now) for c in candidates}


def _probabilities(
    candidates: Sequence[Candidate],
    scouts: Sequence[Candidate],
    weights: Mapping[str, float],
    arms: Mapping[str, ArmStats],
    config: RoutingConfig,
) -> dict[str, float]:
    """Of each candidate being chosen next: the table's expected shares and the log's propensities. ``weights``: of the
    proven ones, by signature."""
    shares = {c.signature: 0.0 for c in candidates}
    if not weights:
        shares[min(scouts, key=_prior_order).signature] = 1.0
        return shares
    explore = config.explore_share if scouts else 0.0
    total = math.fsum(weights.values())
    for signature, weight in weights.items():
        shares[signature] = (1.0 - explore) * weight / total
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
