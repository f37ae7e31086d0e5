"""What is asked for, what is missing and who shall help: the parts of a tracker that grow its mesh, put together.

Demand and its peers, the work of joining machines, the weights files they fetch, advice to move; and what is kept of
it all across restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.files import FileServer
from daemons.kit.tasks import Tasks, every
from daemons.tracker.assignments import Assignments, SmallFiles
from daemons.tracker.calls import Call, CallWall
from daemons.tracker.claims import Claims
from daemons.tracker.events import EventLog
from daemons.tracker.fleet import Fleet
from daemons.tracker.gossip import Gossip, Peer
from daemons.tracker.keeping import SAVE_S, Keeping, restore
from daemons.tracker.rebalancing import BALANCE_S, Rebalancing
from daemons.tracker.stats import stats
from daemons.tracker.store import Database, Saved
from daemons.tracker.usage import UsageLedger
from meshnet.domain.demand import DemandStats
from meshnet.weights.store import Store
from meshnet.wire.demand import StatsResponse
from meshnet.wire.routing import CallMessage, EventMessage


@dataclass(frozen=True, slots=True)
class Means:
    """What a tracker is given from outside for its supply. ``dial`` gives the files of a node by its address;
    without ``database`` nothing outlives the process."""

    store: Store
    dial: Callable[[str], SmallFiles]
    rng: Random
    peers: Sequence[Peer] = ()
    database: Database | None = None
    saved: Saved = field(default_factory=Saved)


class Supply:
    """One tracker's. Made before the events and the wall that tell it of calls; ``attach`` brings them together."""

    def __init__(
        self,
        means: Means,
        fleet: Fleet,
        demand: DemandStats,
        now: Callable[[], float],
        now_wall: Callable[[], float],
        tell: Callable[..., Any],
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        """``key`` signs what is counted here for other trackers."""
        self._means = means
        self._demand = demand
        self._now = now
        self._now_wall = now_wall
        self._started_wall = now_wall()
        self._keeping: Keeping | None = None
        self.assignments = Assignments(fleet, demand, means.store, now, now_wall, lambda: demand.url, means.dial)
        self.files = FileServer(means.store, now)
        self.rebalancing = Rebalancing(fleet, self.assignments, now, tell)
        self.gossip = Gossip(demand, means.peers, now, now_wall, means.rng, key)
        self.usage = UsageLedger(means.database, means.saved, now_wall)
        self.claims = Claims(fleet)
        self._tasks = Tasks("supply")

    def attach(self, wall: CallWall, events: EventLog, max_calls: int) -> int:
        """Bring back what was kept of an earlier life; returns how many rows could not be read."""
        keeping = Keeping(self._means.database, self._demand, wall, events, self._now, self._now_wall, max_calls)
        self._keeping = keeping
        return restore(self._means.saved, self._demand, wall, events, self._now_wall())

    def start(self, url: str) -> None:
        """Begin the loops, at this address."""
        self._demand.url = url
        if self._means.database is not None:
            self._means.database.start(asyncio.get_running_loop().call_soon_threadsafe)
            self._means.database.keep_identity(self._demand.tracker_id, self._demand.generation)
        self.gossip.start(self._tasks)
        self._tasks.start(every(self._balance, lambda: BALANCE_S, "balance"), "balance")
        self._tasks.start(every(self._save, lambda: SAVE_S, "save"), "save")

    def on_call(self, call: Call, message: CallMessage) -> None:
        """A call ended."""
        self.usage.record(call)
        self.claims.observe(call)
        if self._keeping is not None:
            self._keeping.keep_call(message)

    def on_event(self, event: EventMessage, publish: Callable[[], None]) -> None:
        if self._keeping is None:
            publish()
        else:
            self._keeping.keep_event(event, publish)

    def stats(self) -> StatsResponse:
        assert self._keeping is not None
        return stats(self._demand, self._started_wall, self._now_wall(), self.gossip.peers(), self._keeping)

    async def _balance(self) -> None:
        self.rebalancing.tick()
        self.claims.forget()

    async def _save(self) -> None:
        if self._keeping is not None:
            self._keeping.save()

    async def close(self) -> None:
        """The last save, then the end of the writer."""
        await self._tasks.close()
        await self._save()
        if self._means.database is not None:
            await asyncio.to_thread(self._means.database.close)
