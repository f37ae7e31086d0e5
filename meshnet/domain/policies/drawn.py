"""A policy as a rule that gives every candidate a score and a probability; one throw of the dice then chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import NoRoute
from meshnet.domain.policies.adr import draw
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.rows import arm_row
from meshnet.domain.routing import ArmRow, Decision, Outcome, PolicyName, TopologyChange


@dataclass(frozen=True, slots=True)
class Odds:
    """By signature: what each candidate should yield now in tokens/s, and how likely it is to be chosen (sum 1)."""

    scores: Mapping[str, float]
    probabilities: Mapping[str, float]


class Rule(Protocol):
    def __call__(self, candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds: ...


class DrawnPolicy:
    """Chooses by its rule's probabilities. The best predicted route is exploit, any other scout."""

    def __init__(self, name: PolicyName, rule: Rule, memory: RoutingMemory) -> None:
        self.name: PolicyName = name
        self._rule = rule
        self._memory = memory

    def choose(self, candidates: Sequence[Candidate], now: float, rng: Random) -> Decision:
        if not candidates:
            raise NoRoute("No candidate route is left to choose from. See: meshnet coverage")
        odds = self._rule(candidates, self._memory, now)
        signature = draw(odds.probabilities, rng)
        best = max(odds.scores.values())
        score, share = odds.scores[signature], odds.probabilities[signature]
        exploits = score >= best
        why = f"{self.name}: predicted {score:.3g} tokens/s, " + (
            f"the best of {len(candidates)} routes" if exploits else f"the best has {best:.3g}; a try at {share:.1%}"
        )
        return Decision(
            next(c.route for c in candidates if c.signature == signature),
            signature,
            "exploit" if exploits else "scout",
            why,
            self.name,
            odds.scores,
            odds.probabilities,
        )

    def observe(self, outcome: Outcome) -> None:
        self._memory.observe(outcome)

    def on_topology(self, change: TopologyChange) -> None:
        self._memory.on_topology(change)

    def table(self, candidates: Sequence[Candidate], now: float) -> list[ArmRow]:
        if not candidates:
            return []
        odds = self._rule(candidates, self._memory, now)
        arms = {c.signature: self._memory.arms.arm(c.route.model_key, c.signature, now) for c in candidates}
        best = max((a.tps or 0.0 for a in arms.values() if a.status == "proven"), default=None)
        return [
            arm_row(c, arms[c.signature], best, odds.probabilities[c.signature], odds.scores[c.signature])
            for c in candidates
        ]
