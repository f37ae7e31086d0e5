"""The planner's one object for learned routing: candidates, choice, table and learning, for every policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from meshnet.domain.candidates import Candidate, enumerate_routes
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import ModelKey
from meshnet.domain.nodes import Node
from meshnet.domain.policies.adr import AdrPolicy
from meshnet.domain.policies.arms import eps_rule, greedy_rule, p2c_rule, random_rule, thompson_rule
from meshnet.domain.policies.drawn import DrawnPolicy, Rule
from meshnet.domain.policies.hop import hop_rule
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.route_search import k_best_routes
from meshnet.domain.routes import Route, select_route
from meshnet.domain.routing import (
    POLICY_NAMES,
    ArmRow,
    Decision,
    Outcome,
    Policy,
    PolicyName,
    RoutingConfig,
    TopologyChange,
)

RULES: Mapping[PolicyName, Rule] = {
    "hop": hop_rule,
    "greedy": greedy_rule,
    "eps": eps_rule,
    "thompson": thompson_rule,
    "p2c": p2c_rule,
    "random": random_rule,
}


def make_policy(name: str, config: RoutingConfig, memory: RoutingMemory | None = None) -> Policy:
    """The policy of that name, learning into ``memory`` (a new one if None). Policies that share a memory share what
    is learned: pass each outcome to one of them, or to the memory. Raises InvalidRequest for an unknown name."""
    memory = memory or RoutingMemory(config)
    if name == "adr":
        return AdrPolicy(config, memory)
    for known, rule in RULES.items():
        if known == name:
            return DrawnPolicy(known, rule, memory)
    raise InvalidRequest(
        f"route policy {name!r} is unknown; choose one of {', '.join(POLICY_NAMES)}.", param="route_policy"
    )


class Router:
    """All policies over one memory. ``choose``, ``propose`` and ``table`` change nothing: explaining is choosing."""

    def __init__(self, config: RoutingConfig) -> None:
        self.config = config
        self.memory = RoutingMemory(config)
        self._policies: dict[str, Policy] = {name: make_policy(name, config, self.memory) for name in POLICY_NAMES}

    def policy(self, name: str | None = None) -> Policy:
        """The named policy, the configured one for None. Raises InvalidRequest for an unknown name."""
        wanted: str = name or self.config.policy
        return self._policies.get(wanted) or make_policy(wanted, self.config, self.memory)

    def propose(
        self, nodes: Sequence[Node], model_key: ModelKey, turn: int = 0, policy: str | None = None
    ) -> list[Candidate]:
        """The candidates that the policy chooses from: ADR-0021's for adr, the k best for the others (by learned node
        speeds for hop). Pass a ``turn`` that rises by one per request. Empty if no route is complete."""
        return propose(self.policy(policy).name, self.memory, nodes, model_key, turn)

    def choose(self, candidates: Sequence[Candidate], now: float, rng: Random, policy: str | None = None) -> Decision:
        return self.policy(policy).choose(candidates, now, rng)

    def table(self, candidates: Sequence[Candidate], now: float, policy: str | None = None) -> list[ArmRow]:
        return self.policy(policy).table(candidates, now)

    def observe(self, outcome: Outcome) -> bool:
        """True if the outcome became a speed sample."""
        return self.memory.observe(outcome)

    def on_topology(self, change: TopologyChange) -> None:
        self.memory.on_topology(change)

    def epoch(self, model_key: ModelKey) -> int:
        """The model's topology epoch: write it into the Outcome of what is chosen now."""
        return self.memory.arms.epochs.epoch(model_key)


def propose(
    policy: PolicyName, memory: RoutingMemory, nodes: Sequence[Node], model_key: ModelKey, turn: int = 0
) -> list[Candidate]:
    """``Router.propose`` for who holds policies and memory apart."""
    if policy == "adr":
        return enumerate_routes(nodes, model_key)
    if policy == "hop":
        return k_best_routes(nodes, model_key, turn, memory.speed)
    return k_best_routes(nodes, model_key, turn)


def greedy_fallback(nodes: Sequence[Node], model_key: ModelKey, why: str) -> Decision:
    """ADR-0013's selection as a decision: no candidate could be used, or learning is off. Raises NoRoute."""
    return _certain(select_route(nodes, model_key), "greedy-fallback", why)


def pinned_decision(route: Route) -> Decision:
    """The client named the nodes: the policy is not asked, the sample still counts."""
    return _certain(route, "pinned", "pinned by the request")


def _certain(route: Route, mode: str, why: str) -> Decision:
    name = route.signature
    return Decision(route, name, "pinned" if mode == "pinned" else "greedy-fallback", why, "none", {}, {name: 1.0})
