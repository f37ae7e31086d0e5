"""What is asked for, what is missing and who shall help: the parts of a tracker that grow its mesh, put together.

Demand and its peers, the work of joining machines, the weights files they fetch, advice to move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from daemons.kit.files import FileServer
from daemons.kit.tasks import Tasks, every
from daemons.tracker.assignments import Assignments, SmallFiles
from daemons.tracker.fleet import Fleet
from daemons.tracker.rebalancing import BALANCE_S, Rebalancing
from meshnet.domain.demand import DemandStats
from meshnet.weights.store import Store


@dataclass(frozen=True, slots=True)
class Means:
    """What a tracker is given from outside for its supply. ``dial`` gives the files of a node by its address."""

    store: Store
    dial: Callable[[str], SmallFiles]
    rng: Random


class Supply:
    """``url`` is set once the tracker listens."""

    def __init__(
        self,
        means: Means,
        fleet: Fleet,
        demand: DemandStats,
        now: Callable[[], float],
        now_wall: Callable[[], float],
        tell: Callable[..., Any],
    ) -> None:
        self.url = ""
        self.assignments = Assignments(fleet, demand, means.store, now, now_wall, lambda: self.url, means.dial)
        self.files = FileServer(means.store, now)
        self.rebalancing = Rebalancing(fleet, self.assignments, now, tell)
        self._tasks = Tasks("supply")

    def start(self, url: str) -> None:
        """Begin the loops, at this address."""
        self.url = url
        self._tasks.start(every(self._balance, lambda: BALANCE_S, "balance"), "balance")

    async def _balance(self) -> None:
        self.rebalancing.tick()

    async def close(self) -> None:
        await self._tasks.close()
