"""The one place that decides a route, and that counts what is in flight on each node.

Candidates come from the domain, learning lies in its policies; this file gives them live nodes and reservations, and
tells them how calls ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from random import Random

from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.health import Health
from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import NoRoute
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.policies import make_policy, propose
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.routes import pinned_route, select_route
from meshnet.domain.routing import ArmRow, Decision, Outcome, Policy, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import Reputation

log = logging.getLogger(__name__)

Avoid = Collection[tuple[NodeId, int]]
"""(node_id, epoch) of nodes a call does not want again; one that came back under a new epoch is welcome."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, with what is measured against it later."""

    decision: Decision
    epoch: int
    """The model's topology epoch when it was made."""
    loads: tuple[int, ...] = ()


class Planner:
    """Decides, reserves, learns. ``rng`` draws the scouts; ``now`` is monotonic."""

    def __init__(
        self,
        fleet: Fleet,
        config: RoutingConfig,
        rng: Random,
        now: Callable[[], float],
        learning: bool = True,
        on_health: Callable[[NodeId, str, str], None] = lambda node_id, kind, why: None,
    ) -> None:
        """``on_health`` hears of nodes "ejected" and "returned"."""
        self._fleet = fleet
        self._rng = rng
        self._now = now
        self.config = config
        self.memory = RoutingMemory(config)
        self.reputation = Reputation(config.stats_half_life_s)
        self.health = Health(now, rng)
        self.learning = learning
        self._on_health = on_health
        self._policies: dict[str, Policy] = {}
        self._outcomes = 0
        self._in_flight: Counter[NodeId] = Counter()
        self._policy(None)
        fleet.listen(self._on_change)

    def plan(self, model_key: str, *, pin: Collection[str] = (), policy: str | None = None, avoid: Avoid = ()) -> Plan:
        """The route for one request now. Raises NoRoute naming uncovered layers, BadPin, InvalidRequest (policy)."""
        nodes = self.nodes(model_key)
        if pin:
            return self._pinned(model_key, nodes, list(pin))
        chooser = self._policy(policy)
        usable = self._usable(nodes, avoid)
        candidates = self._propose(chooser, usable, model_key) if self.learning or policy else []
        if not candidates:
            return self._greedy(model_key, usable)
        decision = chooser.choose(candidates, self._now(), self._rng)
        chosen = next((c for c in candidates if c.signature == decision.signature), None)
        return Plan(decision, self.epoch(model_key), chosen.loads if chosen else ())

    def _pinned(self, model_key: str, nodes: list[Node], pin: list[str]) -> Plan:
        route = pinned_route(nodes, ModelKey(model_key), pin)
        decision = Decision(route, route.signature, "pinned", "the request names this route", "pinned")
        return Plan(decision, self.epoch(model_key))

    def _greedy(self, model_key: str, usable: list[Node]) -> Plan:
        if not any(node.state == "ready" for node in usable):
            raise self._nothing_ready(model_key, usable)
        route = select_route(usable, ModelKey(model_key))
        why = "no candidate could be used" if self.learning else "learning is off"
        decision = Decision(
            route, route.signature, "greedy-fallback", f"{why}: furthest-reaching hops, fastest first", "greedy"
        )
        return Plan(decision, self.epoch(model_key))

    def _nothing_ready(self, model_key: str, usable: list[Node]) -> NoRoute:
        known = [*self._fleet.nodes(model_key), *filter(None, (self._fleet.last_seen(model_key),))]
        layers = f"layers 0-{max(node.n_layers for node in known) - 1}" if known else "its layers"
        if usable:
            states = ", ".join(f"{node.name or node.node_id} ({node.shard}) is {node.state}" for node in usable)
            return NoRoute(f"No route for {model_key}: {layers} are held by no ready node; {states}.")
        held = "no other live node" if self._fleet.nodes(model_key) else "no live node"
        return NoRoute(f"No route for {model_key}: {layers} are held by {held}. See: meshnet nodes")

    def _usable(self, nodes: list[Node], avoid: Avoid) -> list[Node]:
        """Without those to avoid; without doubtful ones as well, as far as the rest still covers what all do."""
        kept = [node for node in nodes if (node.node_id, node.epoch) not in avoid]
        doubtful = sorted((node for node in kept if self._is_doubtful(node)), key=self._doubt, reverse=True)
        for node in doubtful:
            rest = [other for other in kept if other is not node]
            if _is_spare(node, rest):
                kept = rest
        return kept

    def _is_doubtful(self, node: Node) -> bool:
        """Suspect, ejected, or on trial with the one request it gets."""
        state = self.health.state(node.wallet)
        on_trial = state == "half-open" and node.in_flight > 0
        return state == "ejected" or on_trial or self._fleet.is_suspect(node)

    def _doubt(self, node: Node) -> tuple[int, float, str]:
        """The most doubtful is left out first."""
        return self._fleet.missed(node), self.health.ejected_for_s(node.wallet), node.node_id

    def nodes(self, model_key: str | None = None) -> list[Node]:
        """Live nodes with what is in flight on them and how they fared."""
        now = self._now()
        return [
            replace(node, in_flight=self._in_flight[node.node_id], reputation=self.reputation.value(node.wallet, now))
            for node in self._fleet.nodes(model_key)
        ]

    @contextlib.contextmanager
    def reserve(self, plan: Plan) -> Iterator[None]:
        """One in flight on each hop, until the block is left, however it is left."""
        node_ids = plan.decision.route.node_ids
        self._in_flight.update(node_ids)
        try:
            yield
        finally:
            self._in_flight.subtract(node_ids)
            for node_id in node_ids:
                if self._in_flight[node_id] <= 0:
                    del self._in_flight[node_id]

    def in_flight(self, node_id: str) -> int:
        return self._in_flight.get(NodeId(node_id), 0)

    def observe(self, outcome: Outcome) -> None:
        """What an attempt taught: of the route to the policies, of its nodes to their reputation and health."""
        self.memory.observe(outcome)
        self._outcomes += 1
        if outcome.status in ("ok", "rerouted") and outcome.completion_tokens:
            for node_id in outcome.route.node_ids:
                self.reputation.observe(_wallet(node_id), True, outcome.finished_at)
                if self.health.succeeded(_wallet(node_id)):
                    self._on_health(node_id, "returned", "a request went through")
        elif outcome.status == "failed" and outcome.failed_node is not None:
            self._failed(outcome.failed_node, outcome)

    def _failed(self, node_id: NodeId, outcome: Outcome) -> None:
        self.reputation.observe(_wallet(node_id), False, outcome.finished_at)
        ejected_s = self.health.failed(_wallet(node_id), broke_stream=outcome.first_token_at is not None)
        if ejected_s is not None:
            log.warning("node ejected node=%s for_s=%.0f", node_id, ejected_s)
            self._on_health(node_id, "ejected", f"left out for {ejected_s:.0f} s where others hold its layers")

    def epoch(self, model_key: str) -> int:
        return self.memory.arms.epochs.epoch(model_key)

    def table(self, model_key: str, policy: str | None = None) -> list[ArmRow]:
        """What is learned of each candidate; changes nothing."""
        return self._policy(policy).table(self.candidates(model_key, policy), self._now())

    def candidates(self, model_key: str, policy: str | None = None) -> list[Candidate]:
        return self._propose(self._policy(policy), self._usable(self.nodes(model_key), ()), model_key)

    def _propose(self, chooser: Policy, usable: list[Node], model_key: str) -> list[Candidate]:
        """ADR-0021's candidates for adr, the k best by what is learned for the others. What turns with every outcome
        is which of the nodes on none of the best get a candidate all the same."""
        return propose(chooser.name, self.memory, usable, ModelKey(model_key), self._outcomes)

    def explain(self, model_key: str, *, pin: Collection[str] = (), policy: str | None = None) -> Plan:
        """The decision ``plan`` would make, with the dice as they lie; they are put back."""
        state = self._rng.getstate()
        try:
            return self.plan(model_key, pin=pin, policy=policy)
        finally:
            self._rng.setstate(state)

    def tick(self) -> None:
        """Forget what nobody measured for a day."""
        self.memory.prune(self._now())
        self.reputation.forget(self._now())

    def _policy(self, name: str | None) -> Policy:
        name = name or self.config.policy
        if name not in self._policies:
            self._policies[name] = make_policy(name, self.config, self.memory)
        return self._policies[name]

    def _on_change(self, change: Change) -> None:
        if change.new_process:
            self.health.restarted(change.node.wallet)
        if change.topology:
            kind = "join" if change.kind == "joined" else "leave"
            self.memory.on_topology(TopologyChange(change.node.model_key, change.node.node_id, kind))


def _is_spare(node: Node, rest: list[Node]) -> bool:
    """Whether like, ready nodes hold every layer of this one without it."""
    like = (node.revision, node.dtype, node.n_layers)
    held = {
        layer
        for other in rest
        if other.state == "ready" and (other.revision, other.dtype, other.n_layers) == like
        for layer in range(other.shard.start, other.shard.end + 1)
    }
    return node.state != "ready" or held.issuperset(range(node.shard.start, node.shard.end + 1))


def _wallet(node_id: str) -> str:
    return node_id.partition(".")[0]
