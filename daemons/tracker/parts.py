"""The tracker put together: its parts, what each hears of the others, its loops, its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from daemons.kit.identity import WalletKey
from daemons.kit.tasks import Tasks, every
from daemons.tracker.attempts import Attempts
from daemons.tracker.audit import Auditor
from daemons.tracker.calls import Call, CallWall
from daemons.tracker.chat import ChatService
from daemons.tracker.decisions import FLUSH_S, DecisionLog
from daemons.tracker.events import EventLog
from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.metrics import Metrics
from daemons.tracker.planner import Plan, Planner
from daemons.tracker.reach import LOOK_S, Reach
from daemons.tracker.seal import Seal
from daemons.tracker.settings import TrackerConfig, listed
from daemons.tracker.supply import Means, Supply
from daemons.tracker.witnesses import Witnesses
from meshnet.domain.demand import DemandStats
from meshnet.domain.ids import CallId, NodeId, Wallet
from meshnet.domain.routing import Outcome
from meshnet.wire import api
from meshnet.wire.messages import Hello
from meshnet.wire.relay import parse_relay_url
from meshnet.wire.routing import CallMessage

REAP_S = 1.0
"""How often leases are looked at: a silent death is known at most this much late."""
FORGET_S = 3600.0


@dataclass(frozen=True, slots=True)
class Clock:
    """``now``: monotonic seconds, for every age and deadline. ``wall``: Unix seconds, for display."""

    now: Callable[[], float]
    wall: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Identity:
    """``tracker_id`` outlives restarts: the wallet of ``key`` where there is one. ``boot`` does not."""

    tracker_id: str
    boot: str
    generation: int | None = None
    """Of this id's counts, rising with every start; None: by the clock."""
    key: WalletKey | None = None
    """Signs tickets and slices of demand; without one, links carry none and peers get none."""

    @property
    def wallet(self) -> Wallet:
        return self.key.wallet if self.key is not None else Wallet("")

    def hello(self) -> Hello:
        return Hello(
            peer_id=f"tracker.{self.tracker_id}", role="tracker", boot=self.boot, wire_version=api.WIRE_VERSION
        )


class Tracker:
    """All parts of one tracker; ``http`` dials the links and is closed by its owner."""

    def __init__(
        self,
        config: TrackerConfig,
        identity: Identity,
        http: aiohttp.ClientSession,
        clock: Clock,
        rng: Random,
        means: Means,
        decisions: DecisionLog | None = None,
        seal: Seal | None = None,
    ) -> None:
        """Without a ``seal`` calls carry no tickets, which only nodes on loopback take."""
        self.config = config
        self.identity = identity
        self.relays = listed(config.relays)
        self._seal = seal
        self.clock = clock
        self.started = int(clock.wall())
        self.started_at = clock.now()
        self.fleet = Fleet(clock.now)
        self.fleet.max_per_address = config.max_nodes_per_address if config.profile == "exposed" else 0
        generation = identity.generation
        self.demand = DemandStats(identity.tracker_id, self.started if generation is None else generation, "")
        private = identity.key.private if identity.key else None
        self.supply = Supply(means, self.fleet, self.demand, clock.now, clock.wall, self._tell, private)
        self._decisions = decisions
        self.planner = Planner(
            self.fleet,
            config.routing(),
            rng,
            clock.now,
            config.route_learning,
            self._on_health,
            self._log_decision,
            config.trusted_wallets(),
        )
        self.events = EventLog(clock.wall, keep=self.supply.on_event)
        self.wall = CallWall(clock.now, config.max_calls_kept, self.fleet.name_of, self._on_call)
        self.supply.attach(self.wall, self.events, config.max_calls_kept)
        self.metrics = Metrics(self.fleet, lambda: len(self.wall.running))
        self.auditor = Auditor(
            self.fleet,
            http,
            rng,
            config.audit_share,
            self._tell,
            self.metrics.audited,
            self.planner.convict,
            seal.link_ticket if seal else None,
        )
        self.attempts = Attempts(identity.hello, http, config.deadlines(), clock.now, seal.prover if seal else None)
        self.chat = ChatService(
            self.fleet,
            self.planner,
            self.attempts,
            self.wall,
            self.events,
            self.metrics,
            config.deadlines(),
            rng,
            clock.now,
            clock.wall,
            self._on_demand,
            seal.route_ticket if seal else None,
        )
        self._witnesses = Witnesses(identity.hello, http, clock.now, seal.prover if seal else None)
        self.reach: Reach | None = None
        if config.profile != "local":
            self.reach = Reach(self.fleet, self.attempts.dial, self._witnesses.ask, clock.now)
            self.planner.why_blocked = self.reach.why_blocked
        self.fleet.listen(self._on_change)
        self._tasks = Tasks("tracker")

    def link_tickets(self, urls: Iterable[str], caller: str) -> dict[str, str]:
        """Leave for ``caller`` to come to those of these nodes whose address names their wallet, by wallet."""
        if self._seal is None:
            return {}
        wallets = [parse_relay_url(url).wallet for url in urls if url.startswith(("relay://", "tls://"))]
        return {wallet: self._seal.link_ticket(wallet, Wallet(caller)) for wallet in wallets}

    def start(self, url: str) -> None:
        """Begin the loops, listening at ``url``: leases end, old statistics are forgotten."""
        self.supply.start(url)
        self._tasks.start(every(self._reap, lambda: REAP_S, "reap"), "reap")
        if self.reach is not None:
            self._tasks.start(every(self.reach.tick, lambda: LOOK_S, "reach"), "reach")
        self._tasks.start(every(self._forget, lambda: FORGET_S, "forget"), "forget")
        if self._decisions is not None:
            self._tasks.start(every(self._decisions.flush, lambda: FLUSH_S, "decisions"), "decisions")

    def _on_call(self, call: Call, message: CallMessage) -> None:
        self.supply.on_call(call, message)
        self.auditor.consider(call)

    def _tell(self, kind: str, **fields: Any) -> None:
        self.events.add(kind, **fields)

    def _log_decision(self, plan: Plan, outcome: Outcome) -> None:
        if self._decisions is not None:
            self._decisions.add(plan, outcome)

    async def _reap(self) -> None:
        self.fleet.tick()

    async def _forget(self) -> None:
        self.planner.tick()
        self.demand.forget_expired(self.clock.wall())

    def _on_demand(self, model_key: str, call_id: CallId) -> None:
        """A model that could be assigned counts although nobody holds it: that is how it comes to be held. Names that
        clients make up do not."""
        if not self.fleet.knows(model_key) and not self.supply.assignments.is_stored(model_key):
            return
        self.metrics.demand(model_key)
        self.demand.record(model_key, call_id, self.clock.wall())

    def _on_change(self, change: Change) -> None:
        node = change.node
        if change.new_process and (lease := self.fleet.get(node.node_id)) is not None:
            self.attempts.forget(node.node_id, lease.claim.boot)
        self.events.add(
            f"node.{change.kind}",
            problem=change.kind in ("left", "quarantined", "unheard"),
            node_id=node.node_id,
            model_key=node.model_key,
            text=f"{node.name} ({node.shard}): {change.reason}",
            data={"name": node.name, "shard": str(node.shard), "state": node.state, "epoch": node.epoch},
        )

    def _on_health(self, node_id: NodeId, kind: str, why: str) -> None:
        self.events.add(f"node.{kind}", problem=kind == "ejected", node_id=node_id, text=why)

    async def drain(self, within_s: float) -> None:
        """New calls are refused; those that run have so long to end."""
        await self.chat.drain(within_s)

    async def stop(self) -> None:
        """Calls end with an error, event feeds end, loops end."""
        await self.chat.stop()
        await self.auditor.close()
        self.events.close()
        await self.supply.close()
        await self._tasks.close()
        if self._decisions is not None:
            await self._decisions.close()

    async def close(self) -> None:
        """After the last response is out."""
        await self._witnesses.close()
        await self.attempts.close()
