"""Which nodes can be dialled: found by dialling them back, before a call depends on it and now and then afterwards.

A node that says it is at an address nobody reaches gets no calls; it is told, so that it goes to a relay. A node behind
a relay that says where it would be directly is tried there, so that it can come back to a shorter way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from daemons.tracker.fleet import Fleet, Lease
from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import NodeId, Wallet
from meshnet.domain.nodes import Node

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""A node that registers is routable this much later at most, and a round trip."""
AGAIN_S = 15.0
"""After a failure: a firewall that was opened, a line that came back."""
RECHECK_S = 180.0
"""A way that worked, or a direct way for a relayed node."""
AT_ONCE = 16
"""Dials of one look: each takes connect_s at most."""


@dataclass(frozen=True, slots=True)
class _Seen:
    url: str
    works: bool
    at: float


class Reach:
    """``dial(node_id, url)`` raises MeshnetError unless that node answers there and proves itself."""

    def __init__(
        self, fleet: Fleet, dial: Callable[[NodeId, str], Awaitable[object]], now: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._dial = dial
        self._now = now
        self._seen: dict[Wallet, _Seen] = {}

    def is_blocked(self, node: Node) -> bool:
        """Nobody knows that this node can be dialled; relayed ones prove it by their seat."""
        if is_relayed(node.url):
            return False
        seen = self._seen.get(node.wallet)
        return seen is None or seen.url != node.url or not seen.works

    def is_unreachable(self, node: Node) -> bool:
        """It was tried, in vain."""
        seen = self._seen.get(node.wallet)
        return seen is not None and seen.url == node.url and not seen.works

    def has_direct_way(self, lease: Lease) -> bool:
        """A relayed node that could be dialled directly."""
        seen, direct = self._seen.get(lease.node.wallet), lease.claim.direct_url
        return bool(direct) and is_relayed(lease.node.url) and seen is not None and seen.url == direct and seen.works

    async def tick(self) -> None:
        """Dial whoever is due."""
        leases = self._fleet.leases()
        live = {lease.node.wallet for lease in leases}
        self._seen = {wallet: seen for wallet, seen in self._seen.items() if wallet in live}
        due = [(lease, url) for lease in leases if (url := _url_to_try(lease)) and self._is_due(lease, url)]
        await asyncio.gather(*(self._try(lease, url) for lease, url in due[:AT_ONCE]))

    def _is_due(self, lease: Lease, url: str) -> bool:
        seen = self._seen.get(lease.node.wallet)
        if seen is None or seen.url != url:
            return True
        return self._now() - seen.at >= (RECHECK_S if seen.works or is_relayed(lease.node.url) else AGAIN_S)

    async def _try(self, lease: Lease, url: str) -> None:
        node = lease.node
        before = self._seen.get(node.wallet)
        try:
            await self._dial(node.node_id, url)
            works, why = True, "can be dialled"
        except MeshnetError as error:
            works, why = False, f"cannot be dialled: {error.message}"
        self._seen[node.wallet] = _Seen(url, works, self._now())
        if before is None or (before.url, before.works) != (url, works):
            log.info("node dialled back node=%s url=%s works=%s", node.node_id, url, works)
            self._fleet.note(node.node_id, why)


def is_relayed(url: str) -> bool:
    return url.startswith("relay://")


def _url_to_try(lease: Lease) -> str:
    return lease.claim.direct_url if is_relayed(lease.node.url) else lease.node.url
