"""How many broken calls may begin anew at once: a replay is a whole prefill, and a sick mesh must not drown in them.

Whoever comes beyond the budget waits for its turn; only its own deadline ends that wait (docs/adr/0040).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

SHARE = 0.2
"""Of the calls that run. Raising it lets a mesh that loses nodes spend its time on prefills instead of answers."""
AT_LEAST = 3
"""So that a quiet mesh is not held up: three replays hurt nobody."""


class Turn:
    """One place in the budget; ``release`` it as soon as the replay is over. Releasing twice is fine."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: RetryBudget) -> None:
        self._budget = budget
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._budget._released()


class RetryBudget:
    """``running()`` says how many calls run now."""

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._waiting: deque[asyncio.Future[Turn]] = deque()
        self.in_use = 0

    @property
    def limit(self) -> int:
        return max(AT_LEAST, int(SHARE * self._running()))

    def __len__(self) -> int:
        """Calls that wait for a turn."""
        return len(self._waiting)

    async def turn(self) -> Turn:
        """First come, first served. Cancelled, it leaves the queue."""
        if not self._waiting and self.in_use < self.limit:
            return self._take()
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                waiter.result().release()  # The turn came in the moment of the cancel.
            else:
                with contextlib.suppress(ValueError):  # A turn that came back just now found it cancelled already.
                    self._waiting.remove(waiter)
            raise

    def _take(self) -> Turn:
        self.in_use += 1
        return Turn(self)

    def _released(self) -> None:
        self.in_use -= 1
        while self._waiting and self.in_use < self.limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(self._take())
