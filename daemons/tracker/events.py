"""Live events: a bounded log that any number of readers follow, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from typing import Any

from meshnet.wire.routing import EventMessage

MAX_EVENTS = 10_000
"""Events kept for readers that come back: about 5 per call, 300 bytes each. Raising it costs 3 MB per 10,000."""


class EventLog:
    """Events in order, numbered from 1. ``now_wall`` is for display only."""

    def __init__(
        self,
        now_wall: Callable[[], float],
        max_events: int = MAX_EVENTS,
        keep: Callable[[EventMessage, Callable[[], None]], None] = lambda event, publish: publish(),
    ) -> None:
        """``keep(event, publish)`` writes an event down and calls ``publish`` then, in order."""
        self._now_wall = now_wall
        self._keep = keep
        self._given = 0
        self._events: deque[EventMessage] = deque(maxlen=max_events)
        self._last = 0
        self._news = asyncio.Event()
        self._closed = False

    def add(self, kind: str, **fields: Any) -> EventMessage:
        self._given += 1
        event = EventMessage(id=self._given, kind=kind, at=round(self._now_wall(), 3), **fields)
        self._keep(event, lambda: self._publish(event))
        return event

    def restore(self, events: Sequence[EventMessage], last_id: int) -> None:
        """Begin after ``last_id`` with the events of an earlier life. Call it before the first ``add``."""
        self._events.extend(events)
        self._given = self._last = last_id

    def _publish(self, event: EventMessage) -> None:
        self._events.append(event)
        self._last = event.id
        self._wake()

    def after(self, last_id: int) -> list[EventMessage]:
        """Kept events newer than ``last_id``."""
        if last_id > self._last:  # of another life of this tracker: everything here is news
            return list(self._events)
        newer = list(takewhile(lambda event: event.id > last_id, reversed(self._events)))
        return newer[::-1]

    @property
    def last_id(self) -> int:
        return self._last

    async def follow(self, last_id: int, idle_s: float) -> AsyncIterator[list[EventMessage]]:
        """Batches of news, an empty one after each ``idle_s`` without any; ends when the log closes."""
        while not self._closed:
            if batch := self.after(last_id):
                last_id = self._last
                yield batch
                continue
            news = self._news
            try:
                await asyncio.wait_for(news.wait(), idle_s)
            except TimeoutError:
                yield []

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        # Each batch of readers waits on its own event: set once, never cleared, replaced.
        self._news.set()
        self._news = asyncio.Event()
