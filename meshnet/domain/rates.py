"""Token buckets: how often one may ask, by whatever names the one who asks."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K", bound=str)

MOST = 100_000
"""Names kept at once, about 20 MB; beyond it, those whose buckets are fullest are forgotten first."""


class Rates(Generic[K]):
    """Each name may take ``rate`` a second, and ``burst`` at once. Full buckets are forgotten."""

    def __init__(self, rate: float, burst: int, most: int = MOST) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._levels: dict[K, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, name: K, now: float) -> bool:
        """Whether the name may ask now. ``now`` is monotonic."""
        level = self._level(name, now)
        if level < 1.0:
            return False
        if name not in self._levels and len(self._levels) >= self._most:
            self._make_room(now)
        self._levels[name] = (level - 1.0, now)
        return True

    def forget(self, now: float) -> None:
        """Drop the full buckets."""
        for name in [name for name in self._levels if self._level(name, now) >= self._burst]:
            del self._levels[name]

    def _make_room(self, now: float) -> None:
        """A tenth at least goes, so that a flood of names costs this sort once in a while only."""
        self.forget(now)
        over = len(self._levels) - self._most * 9 // 10
        if over > 0:
            for name in sorted(self._levels, key=lambda name: -self._level(name, now))[:over]:
                del self._levels[name]

    def _level(self, name: K, now: float) -> float:
        level, at = self._levels.get(name, (float(self._burst), now))
        return min(float(self._burst), level + (now - at) * self._rate)
