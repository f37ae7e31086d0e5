"""The one place that decides a route, and that counts what is in flight on each node.

Candidates come from the domain, learning lies in its policies; this file gives them live nodes and reservations, and
tells them how calls ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from daemons.tracker.doubts import Avoid, Doubts
from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.health import Health
from daemons.tracker.kept import Kept
from meshnet.domain.candidates import Candidate, make_candidate
from meshnet.domain.errors import NoRoute
from meshnet.domain.ids import ModelKey, NodeId, Wallet
from meshnet.domain.left_out import LeftOut, left_out
from meshnet.domain.nodes import Node
from meshnet.domain.policies import make_policy, propose
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.routes import Route, pinned_route, select_route
from meshnet.domain.routing import ArmRow, Decision, Outcome, Policy, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import Reputation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, with what is measured against it later."""

    decision: Decision
    epoch: int
    """The model's topology epoch when it was made."""
    chosen: Candidate
    """The route with its hops' loads, reputations and claimed speeds of that moment."""
    candidates: tuple[Candidate, ...] = ()
    """What the policy chose from; empty where no policy was asked."""
    took_s: float = 0.0
    """To decide."""

    @property
    def loads(self) -> tuple[int, ...]:
        """Along the route's hops."""
        return self.chosen.loads


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
        log: Callable[[Plan, Outcome], None] = lambda plan, outcome: None,
        trusted: frozenset[Wallet] = frozenset(),
    ) -> None:
        """``on_health`` hears of nodes "ejected" and "returned", ``log`` of every decision with what came of it. Routes
        use ``trusted`` wallets alone; empty: all."""
        self._trusted = trusted
        self.why_blocked: Callable[[Node], str] = lambda node: ""
        """Why calls cannot get to a node, "" where they can: asked of whoever dials nodes back."""
        self._fleet = fleet
        self._rng = rng
        self._now = now
        self.config = config
        self.memory = RoutingMemory(config)
        self.reputation = Reputation(config.stats_half_life_s)
        self.health = Health(now, rng)
        self.learning = learning
        self._on_health = on_health
        self._log = log
        self._proposals: Kept[tuple[Candidate, ...]] = Kept()
        self._standing: Kept[list[Node]] = Kept()
        self._doubts = Doubts(fleet, self.health)
        self._policies: dict[str, Policy] = {}
        self._outcomes = 0
        self._boots: dict[NodeId, str] = {}
        self._in_flight: Counter[NodeId] = Counter()
        self._policy(None)
        fleet.listen(self._on_change)

    def plan(self, model_key: str, *, pin: Collection[str] = (), policy: str | None = None, avoid: Avoid = ()) -> Plan:
        """The route for one request now. Raises NoRoute naming uncovered layers, BadPin, InvalidRequest (policy)."""
        began = self._now()
        plan = self._decide(model_key, list(pin), policy, avoid, self._rng, keep=True)
        return replace(plan, took_s=max(self._now() - began, 0.0))

    def explain(
        self, model_key: str, *, pin: Collection[str] = (), policy: str | None = None, seed: int | None = None
    ) -> Plan:
        """The decision ``plan`` would make with the dice as they lie, or with those of ``seed``. Changes nothing."""
        dice = Random(seed)
        if seed is None:
            dice.setstate(self._rng.getstate())
        return self._decide(model_key, list(pin), policy, (), dice, keep=False)

    def _decide(
        self, model_key: str, pin: list[str], policy: str | None, avoid: Avoid, rng: Random, *, keep: bool
    ) -> Plan:
        chooser = self._policy(policy)
        if pin:
            return self._pinned(model_key, self._allowed(model_key), pin)
        candidates = self._candidates(chooser, model_key, avoid, keep=keep) if self.learning or policy else ()
        if not candidates:
            return self._greedy(model_key, self._doubts.usable(self._allowed(model_key), avoid))
        decision = chooser.choose(candidates, self._now(), rng)
        chosen = next(c for c in candidates if c.signature == decision.signature)
        return Plan(decision, self.epoch(model_key), chosen, candidates)

    def _pinned(self, model_key: str, nodes: list[Node], pin: list[str]) -> Plan:
        route = pinned_route(nodes, ModelKey(model_key), pin)
        decision = Decision(route, route.signature, "pinned", "the request names this route", "pinned")
        return self._certain(decision, route, nodes)

    def _greedy(self, model_key: str, usable: list[Node]) -> Plan:
        if not any(node.state == "ready" for node in usable):
            raise self._nothing_ready(model_key, usable)
        route = select_route(usable, ModelKey(model_key))
        why = "no candidate could be used" if self.learning else "learning is off"
        decision = Decision(
            route, route.signature, "greedy-fallback", f"{why}: furthest-reaching hops, fastest first", "greedy"
        )
        return self._certain(decision, route, usable)

    def _certain(self, decision: Decision, route: Route, nodes: Sequence[Node]) -> Plan:
        chosen = make_candidate(route, {node.node_id: node for node in nodes})
        return Plan(decision, self.epoch(route.model_key), chosen)

    def _nothing_ready(self, model_key: str, usable: list[Node]) -> NoRoute:
        known = [*self._fleet.nodes(model_key), *filter(None, (self._fleet.last_seen(model_key),))]
        layers = f"layers 0-{max(node.n_layers for node in known) - 1}" if known else "its layers"
        if usable:
            states = ", ".join(f"{node.name or node.node_id} ({node.shard}) is {node.state}" for node in usable)
            return NoRoute(f"No route for {model_key}: {layers} are held by no ready node; {states}.")
        held = "no other live node" if self._fleet.nodes(model_key) else "no live node"
        return NoRoute(f"No route for {model_key}: {layers} are held by {held}. See: meshnet nodes")

    def nodes(self, model_key: str | None = None) -> list[Node]:
        """Live nodes with what is in flight on them and how they fared."""
        return [self._as_now(node) for node in self._fleet.nodes(model_key)]

    def _allowed(self, model_key: str | None = None) -> list[Node]:
        """Those that routes may use."""
        nodes = self.nodes(model_key)
        trusted = [node for node in nodes if node.wallet in self._trusted] if self._trusted else nodes
        return [node for node in trusted if not self.why_blocked(node)]

    def _as_now(self, node: Node) -> Node:
        in_flight = self._in_flight.get(node.node_id, 0)
        reputation = self.reputation.value(node.wallet, self._now())
        if (in_flight, reputation) == (node.in_flight, node.reputation):
            return node
        return replace(node, in_flight=in_flight, reputation=reputation)

    @contextlib.contextmanager
    def reserve(self, plan: Plan) -> Iterator[None]:
        """One in flight on each hop, until the block is left, however it is left."""
        node_ids, began_at = plan.decision.route.node_ids, self._now()
        self._in_flight.update(node_ids)
        try:
            yield
        finally:
            self._in_flight.subtract(node_ids)
            for node_id in node_ids:
                if self._in_flight[node_id] <= 0:
                    del self._in_flight[node_id]
            for hop in plan.decision.route.hops:
                self._fleet.call_ended(hop.node_id, hop.epoch, began_at)

    def now(self) -> float:
        """Monotonic seconds, as every age here is counted."""
        return self._now()

    def in_flight(self, node_id: str) -> int:
        return self._in_flight.get(NodeId(node_id), 0)

    def observe(self, outcome: Outcome, plan: Plan | None = None) -> None:
        """What an attempt taught: of the route to the policies, of its nodes to their reputation and health. With its
        ``plan`` it goes into the decision log too."""
        self.memory.observe(outcome)
        self._outcomes += 1
        if plan is not None:
            self._log(plan, outcome)
        if outcome.status in ("ok", "rerouted") and outcome.completion_tokens:
            for node_id in outcome.route.node_ids:
                self.reputation.observe(_wallet(node_id), True, outcome.finished_at)
                if self.health.succeeded(_wallet(node_id)):
                    self._forget_kept()
                    self._on_health(node_id, "returned", "a request went through")
        elif outcome.status == "failed" and outcome.failed_node is not None:
            self.blame(outcome.failed_node, outcome.finished_at, broke_stream=outcome.first_token_at is not None)

    def blame(self, node_id: NodeId, at: float, *, broke_stream: bool) -> None:
        """An attempt failed on this node."""
        self._forget_kept()
        self.reputation.observe(_wallet(node_id), False, at)
        ejected_s = self.health.failed(_wallet(node_id), broke_stream=broke_stream)
        if ejected_s is not None:
            log.warning("node ejected node=%s for_s=%.0f", node_id, ejected_s)
            self._on_health(node_id, "ejected", f"left out for {ejected_s:.0f} s where others hold its layers")

    def found_gone(self, node_id: NodeId, epoch: int) -> None:
        """A call found that this lease's process is not there: the others do without it until it is heard of again."""
        self._forget_kept()
        self._doubts.found_gone(node_id, epoch)

    def found_here(self, node_id: NodeId) -> None:
        """It is there after all."""
        self._forget_kept()
        self._doubts.found_here(node_id)

    def is_suspect(self, node: Node) -> bool:
        """Missed heartbeats, or found gone by a call."""
        return self._doubts.is_suspect(node)

    def convict(self, node_id: NodeId, why: str) -> None:
        """Two others contradict what this node computes: left out at once, where others hold its layers."""
        self.reputation.observe(_wallet(node_id), False, self._now())
        ejected_s = self.health.failed(_wallet(node_id), broke_stream=True)
        if ejected_s is not None:
            self._on_health(node_id, "ejected", f"left out for {ejected_s:.0f} s: {why}")

    def epoch(self, model_key: str) -> int:
        return self.memory.arms.epochs.epoch(model_key)

    def table(self, model_key: str, policy: str | None = None) -> list[ArmRow]:
        """What is learned of each candidate, and its share of what comes; changes nothing."""
        chooser, candidates = self._policy(policy), self.candidates(model_key, policy)
        if self.learning or policy or not candidates:
            return chooser.table(candidates, self._now())
        used = self._decide(model_key, [], None, (), self._rng, keep=False).chosen
        if all(candidate.signature != used.signature for candidate in candidates):
            candidates = (*candidates, used)
        rows = chooser.table(candidates, self._now())
        return [replace(row, expected_share=float(row.candidate.signature == used.signature)) for row in rows]

    def candidates(self, model_key: str, policy: str | None = None) -> tuple[Candidate, ...]:
        return self._candidates(self._policy(policy), model_key, (), keep=False)

    def _candidates(self, chooser: Policy, model_key: str, avoid: Avoid, *, keep: bool) -> tuple[Candidate, ...]:
        """ADR-0021's candidates for adr, the k best by what is learned for the others. What turns with every outcome
        is which of the nodes on none of the best get a candidate all the same. ``keep`` them for the next choices."""
        key = (model_key, chooser.name, self._fleet.version, frozenset(self._in_flight.items()))
        kept = self._proposals.get(key, self._now()) if not avoid else None
        if kept is not None:
            return kept
        usable = self._usable(model_key, avoid, keep=keep)
        found = tuple(propose(chooser.name, self.memory, usable, ModelKey(model_key), self._outcomes))
        if keep and not avoid:
            self._proposals.keep(key, found, self._now())
        return found

    def _usable(self, model_key: str, avoid: Avoid, *, keep: bool) -> list[Node]:
        """Nodes that candidates may be made of, with what is in flight on them now. While nodes say nothing new only
        that changes, unless one is on trial: whether it is taken depends on what it does."""
        key, now = (model_key, self._fleet.version), self._now()
        standing = self._standing.get(key, now) if not avoid else None
        if standing is not None:
            loads = self._in_flight
            return [node if node.in_flight == loads.get(node.node_id, 0) else self._as_now(node) for node in standing]
        usable = self._doubts.usable(self._allowed(model_key), avoid)
        if keep and not avoid and not self._doubts.tries_one(usable):
            self._standing.keep(key, usable, now)
        return usable

    def left_out(self, model_key: str, candidates: Sequence[Candidate]) -> list[LeftOut]:
        """Every live node of the model that none of the candidates uses, and why; by node_id."""
        nodes = self._allowed(model_key)
        usable = self._doubts.usable(nodes, ())
        kept = {node.node_id for node in usable}
        doubted = [LeftOut(node.node_id, self._doubts.why(node)) for node in nodes if node.node_id not in kept]
        blocked = [LeftOut(n.node_id, why) for n in self._fleet.nodes(model_key) if (why := self.why_blocked(n))]
        found = [*blocked, *doubted, *left_out(usable, ModelKey(model_key), candidates)]
        return sorted(found, key=lambda row: row.node_id)

    def _forget_kept(self) -> None:
        self._proposals.forget()
        self._standing.forget()

    def tick(self) -> None:
        """Forget what nobody measured for a day."""
        self.memory.prune(self._now())
        self.reputation.forget(self._now())
        self._doubts.forget()
        self._boots = {node_id: boot for node_id, boot in self._boots.items() if self._fleet.get(node_id) is not None}

    def _policy(self, name: str | None) -> Policy:
        name = name or self.config.policy
        if name not in self._policies:
            self._policies[name] = make_policy(name, self.config, self.memory)
        return self._policies[name]

    def _note_boot(self, node_id: NodeId) -> None:
        """What was learned of a node's speed was its last process's; a lease that only lapsed changes nothing."""
        lease = self._fleet.get(node_id)
        if lease is None:
            return
        if self._boots.get(node_id, lease.claim.boot) != lease.claim.boot:
            self.memory.hops.forget(node_id)
        self._boots[node_id] = lease.claim.boot

    def _on_change(self, change: Change) -> None:
        self._forget_kept()
        self._note_boot(change.node.node_id)
        if change.new_process:
            self.health.restarted(change.node.wallet)
        if change.topology:
            kind = "join" if change.kind == "joined" else "leave"
            self.memory.on_topology(TopologyChange(change.node.model_key, change.node.node_id, kind))


def _wallet(node_id: str) -> str:
    return node_id.partition(".")[0]
