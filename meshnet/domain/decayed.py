"""Sums that fade: half of what was added is left after a half-life. Times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass


def decay(age_s: float, half_life_s: float) -> float:
    """``0.5 ** (age / half_life)``; 1 for a negative age."""
    return 0.5 ** (age_s / half_life_s) if age_s > 0 else 1.0


@dataclass(slots=True)
class DecayedSum:
    """``numerator`` and ``denominator`` with one decaying stamp: their ratio is a decayed ratio of sums."""

    numerator: float = 0.0
    denominator: float = 0.0
    stamp: float | None = None

    def add(self, numerator: float, denominator: float, now: float, half_life_s: float) -> None:
        if self.stamp is not None:
            kept = decay(now - self.stamp, half_life_s)
            self.numerator *= kept
            self.denominator *= kept
            now = max(now, self.stamp)
        self.numerator += numerator
        self.denominator += denominator
        self.stamp = now

    @property
    def ratio(self) -> float | None:
        """None while nothing is left to divide by."""
        return self.numerator / self.denominator if self.denominator > 0 else None

    def mass(self, now: float, half_life_s: float) -> float:
        return 0.0 if self.stamp is None else self.denominator * decay(now - self.stamp, half_life_s)
