"""What choices are made of, kept between them: the same mesh under the same loads has the same candidates.

What a thing was made of is its key, whose parts their user names; what fades with time ends it by age.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_S = 1.0
"""Reputation decays, silence makes suspects and node speeds are learned meanwhile: what there is to choose from is this
late at most. What a failure or a heartbeat says forgets it at once. Raising it spares searches on a large busy mesh and
lets choices miss a better route for longer."""
MAX_KEPT = 64
"""Different loads at once that are worth keeping: some 100 KB of candidates."""


class Kept(Generic[T]):
    """Of the last few keys, youngest last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    def get(self, key: Hashable, now: float) -> T | None:
        """None where there is nothing, or nothing young enough."""
        found = self._kept.get(key)
        return found[1] if found is not None and 0.0 <= now - found[0] <= KEPT_S else None

    def keep(self, key: Hashable, value: T, now: float) -> None:
        self._kept[key] = (now, value)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def forget(self) -> None:
        """Something changed that no key names."""
        self._kept.clear()
