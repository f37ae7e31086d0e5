"""What one call does without: the leases that failed it, and those that refused it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from daemons.tracker.attempts import Ended
from meshnet.domain.ids import NodeId

GONE = frozenset({"unreachable", "link_closed", "silent"})
"""Codes that say of a node that its process, or the way to it, is not there."""

LeaseId = tuple[NodeId, int]
"""(node_id, epoch): under a new epoch a node is welcome again."""


class Avoided(Collection[LeaseId]):
    """Filled by attempts that did not finish. Where no route is left, ``unseen`` names those worth a look."""

    def __init__(self) -> None:
        self._failed: set[LeaseId] = set()
        self._refused: set[LeaseId] = set()
        self._unseen: set[LeaseId] = set()

    def add(self, lease: LeaseId, ended: Ended) -> bool:
        """Because of how an attempt ended; whether that says that the lease's process is gone."""
        (self._refused if ended.kind == "refused" else self._failed).add(lease)
        is_gone = ended.kind == "failed" and ended.code in GONE
        if is_gone:
            self._unseen.add(lease)
        return is_gone

    def unseen(self) -> set[LeaseId]:
        """Found gone and not looked for yet: a link that broke has two ends, and only one of them was blamed."""
        found, self._unseen = self._unseen, set()
        return found

    def take_back(self, lease: LeaseId) -> None:
        """It is there after all."""
        self._failed.discard(lease)

    def forgive(self) -> None:
        """Whoever was full may have room now."""
        self._refused.clear()

    def __contains__(self, lease: object) -> bool:
        return lease in self._failed or lease in self._refused

    def __iter__(self) -> Iterator[LeaseId]:
        return iter(self._failed | self._refused)

    def __len__(self) -> int:
        return len(self._failed | self._refused)
