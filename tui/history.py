"""The last quarter of an hour of snapshots, to step through, and what a value was over that time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from meshnet.wire.status import Snapshot

T = TypeVar("T")

SPAN_S = 900.0
"""Seconds of snapshots that are kept: 15 minutes."""
MAX_SNAPSHOTS = 450
"""At one poll every 2 s; bounds memory when events make polls frequent. Equal parts are shared, so an idle mesh costs
a few kilobytes a snapshot."""


def share(before: Snapshot, after: Snapshot) -> Snapshot:
    """``after`` with every part that equals ``before``'s replaced by that same object, so that a ring of snapshots of
    a quiet mesh holds each call and node once and comparing them is a pointer comparison."""
    old_nodes = {node.node_id: node for node in before.nodes}
    old_calls = {call.seq: call for call in before.calls}
    return msgspec.structs.replace(
        after,
        nodes=tuple(_same(old_nodes.get(node.node_id), node) for node in after.nodes),
        calls=tuple(_same(old_calls.get(call.seq), call) for call in after.calls),
        models=_same(before.models, after.models),
        coverage=_same(before.coverage, after.coverage),
        routing=_same(before.routing, after.routing),
        stats=_same(before.stats, after.stats),
    )


def _same(old: T | None, new: T) -> T:
    return old if old is not None and old == new else new


class History:
    """A ring of (monotonic seconds, snapshot), newest last, and the place the operator looks at."""

    def __init__(self) -> None:
        self._ring: deque[tuple[float, Snapshot]] = deque(maxlen=MAX_SNAPSHOTS)
        self._at: int | None = None

    def add(self, now: float, snapshot: Snapshot) -> Snapshot:
        """Remember ``snapshot``; returns it with the parts it shares with the one before."""
        if self._ring:
            snapshot = share(self._ring[-1][1], snapshot)
        full = len(self._ring) == self._ring.maxlen
        self._ring.append((now, snapshot))
        if self._at is not None and full:
            self._at = max(0, self._at - 1)
        while self._ring[0][0] < now - SPAN_S:
            self._ring.popleft()
            if self._at is not None:
                self._at = max(0, self._at - 1)
        return snapshot

    @property
    def is_live(self) -> bool:
        return self._at is None

    @property
    def shown(self) -> tuple[float, Snapshot] | None:
        """What is looked at now: the newest, or the step the operator went back to."""
        if not self._ring:
            return None
        return self._ring[-1 if self._at is None else self._at]

    def step(self, count: int) -> None:
        """Go ``count`` snapshots back (negative) or forward; past the newest is live again."""
        if not self._ring:
            return
        at = (len(self._ring) - 1 if self._at is None else self._at) + count
        self._at = None if at >= len(self._ring) - 1 else max(0, at)

    def live(self) -> None:
        self._at = None

    def until_shown(self) -> tuple[Snapshot, ...]:
        """Oldest to the one looked at."""
        last = len(self._ring) if self._at is None else self._at + 1
        return tuple(snapshot for _, snapshot in list(self._ring)[:last])

    def everything(self) -> tuple[Snapshot, ...]:
        return tuple(snapshot for _, snapshot in self._ring)

    def series(self, value: Callable[[Snapshot], float | None], count: int) -> list[float | None]:
        """``value`` of up to ``count`` snapshots spread over the time until the one looked at, oldest first."""
        past = self.until_shown()
        step = max(1, len(past) // max(1, count))
        return [value(snapshot) for snapshot in past[::-1][::step][:count][::-1]]
