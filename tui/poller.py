"""The one loop that asks the tracker: a tick a time, never two at once, and how the link to it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshnet.domain.errors import MeshnetError
from meshnet.wire.status import Snapshot
from tui.source import MeshSource

POLL_S = 4.0
"""Between polls of a tracker that answers (ADR-0021). Shorter costs the tracker; events bring news sooner anyway."""
EVENT_POLL_S = 1.0
"""Least time between polls when events arrive: a busy mesh must not make the console a load test."""
RETRY_S = (2.0, 4.0, 6.0)
"""Waits after the first, second and further failures. The last keeps the promise to recover within 8 s."""
FROZEN_AFTER_S = 8.0
"""Without news for two polls the screen says FROZEN."""


@dataclass(frozen=True, slots=True)
class Link:
    """How the tracker answers. Times are monotonic seconds of the console."""

    latency_s: float | None = None
    last_good_at: float | None = None
    started_at: float = 0.0
    failures: int = 0
    next_try_at: float = 0.0
    error: str = ""

    @property
    def is_up(self) -> bool:
        return self.failures == 0 and self.last_good_at is not None

    def silent_s(self, now: float) -> float:
        """Seconds since the last good answer, or since the start if there was none."""
        return now - (self.started_at if self.last_good_at is None else self.last_good_at)

    def is_frozen(self, now: float) -> bool:
        return self.failures > 0 or self.silent_s(now) > FROZEN_AFTER_S


class Poller:
    """Owns the link's state. ``clock`` is monotonic seconds."""

    def __init__(self, source: MeshSource, clock: Callable[[], float]) -> None:
        self.source = source
        self._clock = clock
        self.link = Link(started_at=clock())

    async def tick(self) -> Snapshot | None:
        """One poll: a snapshot, or None and a link that says why."""
        began = self._clock()
        try:
            snapshot = await self.source.snapshot()
        except MeshnetError as error:
            self._failed(error.message)
            return None
        now = self._clock()
        self.link = replace(self.link, latency_s=now - began, last_good_at=now, failures=0, error="")
        return snapshot

    def _failed(self, reason: str) -> None:
        failures = self.link.failures + 1
        wait = RETRY_S[min(failures, len(RETRY_S)) - 1]
        self.link = replace(self.link, failures=failures, error=reason, next_try_at=self._clock() + wait)

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next tick."""
        return RETRY_S[min(self.link.failures, len(RETRY_S)) - 1] if self.link.failures else POLL_S
