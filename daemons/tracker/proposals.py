"""Candidates kept between choices: the same mesh under the same loads has the same ones.

What they were made of is the key, whose parts their user names; what fades with time ends them by age.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from meshnet.domain.candidates import Candidate

KEPT_S = 0.25
"""Reputation decays, silence makes suspects and node speeds are learned meanwhile: candidates are this late at most.
Raising it spares searches on a large busy mesh and lets a choice be wrong for longer."""
MAX_KEPT = 64
"""Different loads at once that are worth keeping: some 100 KB."""


class Proposals:
    """Of the last few keys, youngest last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, tuple[Candidate, ...]]] = OrderedDict()

    def get(self, key: Hashable, now: float) -> tuple[Candidate, ...] | None:
        """None where there are none, or none young enough."""
        made_at, candidates = self._kept.get(key, (now, None))
        return candidates if 0.0 <= now - made_at <= KEPT_S else None

    def keep(self, key: Hashable, candidates: tuple[Candidate, ...], now: float) -> None:
        self._kept[key] = (now, candidates)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def forget(self) -> None:
        """Something changed that no key names."""
        self._kept.clear()
