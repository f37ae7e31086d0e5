"""Token buckets by wallet: how often one may ask."""

from __future__ import annotations

from meshnet.domain.ids import Wallet


class Buckets:
    """Each wallet may take ``rate`` a second, and ``burst`` at once. Full buckets are forgotten."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._levels: dict[Wallet, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, wallet: Wallet, now: float) -> bool:
        level = self._level(wallet, now)
        if level < 1.0:
            return False
        self._levels[wallet] = (level - 1.0, now)
        return True

    def forget(self, now: float) -> None:
        for wallet in [wallet for wallet in self._levels if self._level(wallet, now) >= self._burst]:
            del self._levels[wallet]

    def _level(self, wallet: Wallet, now: float) -> float:
        level, at = self._levels.get(wallet, (float(self._burst), now))
        return min(float(self._burst), level + (now - at) * self._rate)
