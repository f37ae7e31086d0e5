"""What is kept of a tracker and what comes back at its start: demand every 60 s and at a stop, calls, events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from daemons.tracker.calls import CallWall
from daemons.tracker.events import EventLog
from daemons.tracker.store import Database, Saved
from meshnet.domain.demand import DemandStats
from meshnet.wire.routing import CallMessage, EventMessage

T = TypeVar("T", bound=msgspec.Struct)

SAVE_S = 60.0
"""Between two saves of demand: what a crash costs at most (ADR-0013)."""
LOST_IDS = 1_000_000
"""Event ids left out after a life that ended without a word: readers may have seen some that were never written, and
an id must not come twice."""
NOT_KEPT = "memory only: counts end with this process"


class Keeping:
    """``database`` None keeps nothing."""

    def __init__(
        self,
        database: Database | None,
        demand: DemandStats,
        wall: CallWall,
        events: EventLog,
        now: Callable[[], float],
        now_wall: Callable[[], float],
        max_calls: int,
    ) -> None:
        self._database = database
        self._demand = demand
        self._wall = wall
        self._events = events
        self._now = now
        self._now_wall = now_wall
        self._max_calls = max_calls
        self._saved_at = now()

    @property
    def status(self) -> str:
        return NOT_KEPT if self._database is None else self._database.status

    @property
    def unsaved_s(self) -> float:
        """Since demand was last on disk: what a crash now would cost."""
        return self._now() - self._saved_at

    def save(self) -> None:
        """Hand demand to the writer, let go of what is too old."""
        now_wall = self._now_wall()
        self._demand.forget_expired(now_wall)
        if self._database is None:
            return
        taken_at = self._now()
        self._database.keep_demand(self._demand.export_rows(now_wall), lambda: self._on_saved(taken_at))
        self._database.prune(now_wall, self._events.last_id, self._wall.last_seq, self._max_calls)

    def _on_saved(self, taken_at: float) -> None:
        self._saved_at = taken_at

    def keep_call(self, message: CallMessage) -> None:
        if self._database is not None:
            self._database.keep_call(message.seq, message.accepted_at, msgspec.json.encode(message))

    def keep_event(self, event: EventMessage, publish: Callable[[], None]) -> None:
        """Published once it is written: a reader's last id must mean the same after a restart."""
        if self._database is None:
            publish()
        else:
            self._database.keep_event(event.id, event.at, msgspec.json.encode(event), publish)


def restore(saved: Saved, demand: DemandStats, wall: CallWall, events: EventLog, now_wall: float) -> int:
    """Bring back what was kept; rows that this version cannot read are left out. Returns how many."""
    unread = demand.import_rows(saved.demand, now_wall)
    calls, bad_calls = _decoded(saved.calls, CallMessage)
    old_events, bad_events = _decoded(saved.events, EventMessage)
    wall.restore(calls, saved.last_seq)
    events.restore(old_events, saved.last_event + (0 if saved.was_closed else LOST_IDS))
    return unread + bad_calls + bad_events


def _decoded(bodies: Sequence[bytes], kind: type[T]) -> tuple[list[T], int]:
    good: list[T] = []
    bad = 0
    for body in bodies:
        try:
            good.append(msgspec.json.decode(body, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError):
            bad += 1
    return good, bad
