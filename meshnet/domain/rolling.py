"""Counting requests over time: circular buckets with absolute indices (ADR-0013 section 1).

Owns the three windows and what a jumping wall clock may do to them. Does not know models, peers or storage.
Times are wall seconds since the epoch, UTC, handed in; bucket ``index`` is ``floor(now_wall / bucket_s)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

WindowName = Literal["per_minute", "per_hour", "per_day"]


@dataclass(frozen=True, slots=True)
class Window:
    """``buckets`` slots of ``bucket_s`` seconds each."""

    name: WindowName
    buckets: int
    bucket_s: int

    @property
    def minutes(self) -> float:
        """The whole span in minutes: what ``rpm`` divides by, always."""
        return self.buckets * self.bucket_s / 60

    def index(self, now_wall: float) -> int:
        return math.floor(now_wall / self.bucket_s)

    def is_live(self, index: int, newest: int) -> bool:
        """Whether a bucket still counts when ``newest`` is the current one."""
        return newest - self.buckets < index <= newest


PER_MINUTE = Window("per_minute", 60, 60)
PER_HOUR = Window("per_hour", 24, 3600)
PER_DAY = Window("per_day", 30, 86_400)
WINDOWS: tuple[Window, ...] = (PER_MINUTE, PER_HOUR, PER_DAY)
"""ADR-0013: an hour by minutes, a day by hours, 30 days by days."""


class RollingCounter:
    """Counts in one window. Every method takes the wall time; reading moves the window on just as writing does.

    The clock rules:

    * forward: buckets that fall out of the window expire, nothing else. What expired does not come back when the
      clock does.
    * back: the newest bucket keeps counting and nothing is cleared, so a short blip costs nothing.
    * back for a whole bucket's length: the clock is believed, and all labels move back together. Ages and counts
      stay; without this the newest bucket would swallow every request until the old time comes round again.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        # Slot i holds the bucket whose absolute index is indices[i], with indices[i] % buckets == i; -1 is never used.
        self._indices = [-1] * window.buckets
        self._counts = [0] * window.buckets
        self._newest = -1
        self._behind_since: float | None = None

    def add(self, now_wall: float, count: int = 1) -> None:
        """Count in the current bucket; an expired slot is reset first."""
        self._put(self._advance(now_wall), count)

    def buckets(self, now_wall: float) -> dict[int, int]:
        """The live, non-empty buckets: absolute index -> count."""
        newest = self._advance(now_wall)
        pairs = zip(self._indices, self._counts, strict=True)
        return {index: count for index, count in pairs if count and self.window.is_live(index, newest)}

    def total(self, now_wall: float) -> int:
        return sum(self.buckets(now_wall).values())

    def rpm(self, now_wall: float) -> float:
        """Requests per minute: live counts / all minutes of the window, however young the counter is (ADR-0013)."""
        return self.total(now_wall) / self.window.minutes

    def restore(self, buckets: Mapping[int, int]) -> None:
        """Add saved buckets. Newer than the clock is as if the clock had gone back; expired ones are dropped."""
        if buckets:
            self._newest = max(self._newest, *buckets)
        for index, count in buckets.items():
            if self.window.is_live(index, self._newest):
                self._put(index, count)

    def _put(self, index: int, count: int) -> None:
        slot = index % self.window.buckets
        if self._indices[slot] != index:
            self._indices[slot], self._counts[slot] = index, 0
        self._counts[slot] += count

    def _advance(self, now_wall: float) -> int:
        index = self.window.index(now_wall)
        if index < self._newest:
            self._stay_or_believe(now_wall)
        if index >= self._newest:
            self._newest, self._behind_since = index, None
        return self._newest

    def _stay_or_believe(self, now_wall: float) -> None:
        if self._behind_since is None or now_wall < self._behind_since:
            self._behind_since = now_wall
        elif now_wall - self._behind_since >= self.window.bucket_s:
            self._relabel(self.window.index(self._behind_since) - self._newest)
            self._behind_since = None

    def _relabel(self, shift: int) -> None:
        """Move every label by ``shift`` buckets: the order and the distances of the buckets stay."""
        live = [
            (index + shift, count)
            for index, count in zip(self._indices, self._counts, strict=True)
            if self.window.is_live(index, self._newest)
        ]
        self._newest += shift
        self._indices = [-1] * self.window.buckets
        self._counts = [0] * self.window.buckets
        for index, count in live:
            self._put(index, count)
