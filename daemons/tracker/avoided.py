"""What one call does without: the leases that failed it, and those that refused it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from daemons.tracker.attempts import Ended
from daemons.tracker.fleet import LeaseId

GONE = frozenset({"unreachable", "link_closed", "silent"})
"""Codes that say of a node that its process, or the way to it, is not there."""


def is_said_gone(ended: Ended) -> bool:
    """Whether this end says that the culprit's process is not there."""
    return ended.kind == "failed" and ended.code in GONE


class Avoided(Collection[LeaseId]):
    """Filled by attempts that did not finish."""

    def __init__(self) -> None:
        self._failed: set[LeaseId] = set()
        self._refused: set[LeaseId] = set()
        self._answered: set[LeaseId] = set()

    def add(self, lease: LeaseId, ended: Ended) -> None:
        """Because of how an attempt ended."""
        (self._refused if ended.kind == "refused" else self._failed).add(lease)

    def answered(self, lease: LeaseId) -> None:
        """It was said to be gone, and is not: a link that broke has two ends, and only one of them was blamed."""
        self._answered.add(lease)

    def take_back(self) -> bool:
        """Where no route is left without them, those that answered are used again; whether there are any."""
        back, self._answered = self._answered & self._failed, set()
        self._failed -= back
        return bool(back)

    def forgive(self) -> None:
        """Whoever was full may have room now."""
        self._refused.clear()

    def __contains__(self, lease: object) -> bool:
        return lease in self._failed or lease in self._refused

    def __iter__(self) -> Iterator[LeaseId]:
        return iter(self._failed | self._refused)

    def __len__(self) -> int:
        return len(self._failed | self._refused)
