"""Passive health: nodes that keep failing are left out for a while, longer each time, and come back by one request.

Learns from calls only. Whether a node can be done without is the planner's to say; nothing here knows routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

FAILURES_IN_A_ROW = 5
"""One failure may be the line's or the hour's; five in a row are the node's."""
FIRST_EJECTION_S = 15.0
"""Three heartbeats: by then a dead node's lease has ended, and a sick one may have been restarted."""
MAX_EJECTION_S = 300.0
JITTER = 0.1
"""Part of an ejection that is drawn, so that nodes ejected together do not come back together."""
FORGIVEN_AFTER_S = 600.0
"""Healthy this long after its last ejection, a node starts again at FIRST_EJECTION_S."""

HealthState = Literal["ok", "ejected", "half-open"]


@dataclass(slots=True)
class _Record:
    failures: int = 0
    """In a row."""
    ejections: int = 0
    until: float = 0.0
    trial: bool = False
    """The ejection is over and no request has come through yet."""


class Health:
    """Per wallet. ``now`` is monotonic; ``rng`` draws the jitter."""

    def __init__(self, now: Callable[[], float], rng: Random) -> None:
        self._now = now
        self._rng = rng
        self._records: dict[str, _Record] = {}

    def failed(self, wallet: str, *, broke_stream: bool) -> float | None:
        """A call failed on this node; client errors and refusals are none. Returns the seconds it is now ejected for,
        None if it stays."""
        record = self._records.setdefault(wallet, _Record())
        record.failures += 1
        if self._now() < record.until:
            return None
        if not (broke_stream or record.trial or record.failures >= FAILURES_IN_A_ROW):
            return None
        if self._now() - record.until > FORGIVEN_AFTER_S:
            record.ejections = 0
        seconds = min(FIRST_EJECTION_S * 2.0 ** min(record.ejections, 16), MAX_EJECTION_S)
        seconds *= 1.0 - JITTER * self._rng.random()
        record.ejections += 1
        record.until = self._now() + seconds
        record.trial = True
        return seconds

    def succeeded(self, wallet: str) -> bool:
        """A call went through. True if that ends an ejection."""
        record = self._records.get(wallet)
        if record is None:
            return False
        back = record.trial
        record.failures, record.trial = 0, False
        record.until = min(record.until, self._now())
        return back

    def restarted(self, wallet: str) -> None:
        """Another process has the wallet: what the last one did is over."""
        self._records.pop(wallet, None)

    def state(self, wallet: str) -> HealthState:
        record = self._records.get(wallet)
        if record is None or not record.trial:
            return "ok"
        return "ejected" if self._now() < record.until else "half-open"

    def ejected_for_s(self, wallet: str) -> float:
        record = self._records.get(wallet)
        return max(0.0, record.until - self._now()) if record is not None else 0.0

    def failures(self, wallet: str) -> int:
        record = self._records.get(wallet)
        return record.failures if record is not None else 0
