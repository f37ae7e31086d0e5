"""Which nodes can be dialled: found by dialling them back, before a call depends on it and now and then afterwards.

The tracker dials, and asks other nodes to: its own line says little about theirs. A node at an address that the tracker
does not reach, or that several others do not and none does, gets no calls; it is told, so that it goes to a relay. A
node behind a relay that says where it would be directly is tried there, so that it can come back to a shorter way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from daemons.tracker.fleet import Fleet, Lease
from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import NodeId, Wallet
from meshnet.domain.nodes import Node
from meshnet.wire.messages import Dialled

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""A node that registers is routable this much later at most, and a round trip."""
AGAIN_S = 15.0
"""After a failure: a firewall that was opened, a line that came back."""
RECHECK_S = 180.0
"""A way that worked, or a direct way for a relayed node."""
AT_ONCE = 16
"""Dials of one look: each takes connect_s at most."""


WITNESSES = 3
"""Others asked at once. One that reaches the node is enough."""
NOES = 2
"""So many must say that they do not, and nobody that it does: a single liar shuts nobody out, and in a mesh of two the
tracker's own dial stands."""
NOES_TO_STAY = 1
"""For the direct way of a relayed node: it stays where it is reached, which costs it nothing but the shorter way."""
NOT_YET = "it was not dialled back yet"

Dialler = Callable[[NodeId, str], Awaitable[object]]
Ask = Callable[[Node, NodeId, str], Awaitable[Dialled | None]]


@dataclass(frozen=True, slots=True)
class _Seen:
    url: str
    why: str
    """It does not work; "" where it does."""
    at: float
    witnessed: bool
    """Another node reached it too, or enough of them did not."""

    @property
    def works(self) -> bool:
        return not self.why


class Reach:
    """``dial(node_id, url)`` raises MeshnetError unless that node answers there and proves itself; ``ask(witness,
    node_id, url)`` says what another node found, None where it does not say."""

    def __init__(self, fleet: Fleet, dial: Dialler, ask: Ask, now: Callable[[], float]) -> None:
        self._fleet = fleet
        self._dial = dial
        self._ask = ask
        self._now = now
        self._seen: dict[Wallet, _Seen] = {}
        self._dialled: dict[Wallet, str] = {}
        """Where the tracker itself reached each wallet last, whatever others say of it: who is there may be a witness,
        so that nobody's word decides who is asked."""
        self._asked_at: dict[Wallet, float] = {}
        """When each wallet was a witness last: questions go round."""

    def is_blocked(self, node: Node) -> bool:
        """Nobody knows that this node can be dialled; relayed ones prove it by their seat."""
        return bool(self.why_blocked(node))

    def why_blocked(self, node: Node) -> str:
        """In words; "" for a node that calls may use."""
        if is_relayed(node.url):
            return ""
        seen = self._seen.get(node.wallet)
        return NOT_YET if seen is None or seen.url != node.url else seen.why

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
        self._dialled = {wallet: url for wallet, url in self._dialled.items() if wallet in live}
        self._asked_at = {wallet: at for wallet, at in self._asked_at.items() if wallet in live}
        tries = [(self._due_at(lease, url), lease, url) for lease in leases if (url := _url_to_try(lease))]
        due = sorted((a_try for a_try in tries if a_try[0] <= self._now()), key=lambda a_try: a_try[0])
        await asyncio.gather(*(self._try(lease, url) for _, lease, url in due[:AT_ONCE]))

    def _due_at(self, lease: Lease, url: str) -> float:
        """Who waits longest is served first. A new address counts from the last try, whatever was tried then, so that
        a node which names another one at each look waits its turn."""
        seen = self._seen.get(lease.node.wallet)
        if seen is None:
            return lease.node.joined_at
        if seen.url != url:
            return seen.at
        if seen.works and not seen.witnessed and self._witnesses(lease.node, url):
            return seen.at + AGAIN_S
        return seen.at + (RECHECK_S if seen.works or is_relayed(lease.node.url) else AGAIN_S)

    async def _try(self, lease: Lease, url: str) -> None:
        node = lease.node
        before = self._seen.get(node.wallet)
        why, witnessed = await self._found(node, url)
        self._seen[node.wallet] = seen = _Seen(url, why, self._now(), witnessed)
        if before is None or (before.url, before.works, before.witnessed) != (url, seen.works, witnessed):
            log.info("node dialled back node=%s url=%s works=%s witnessed=%s", node.node_id, url, seen.works, witnessed)
        if before is None or (before.url, before.works) != (url, seen.works):
            self._fleet.note(node.node_id, why or "can be dialled")

    async def _found(self, node: Node, url: str) -> tuple[str, bool]:
        """Why it cannot be dialled, "" where it can; and whether others settled it."""
        try:
            await self._dial(node.node_id, url)
        except MeshnetError as error:
            self._dialled.pop(node.wallet, None)
            return f"cannot be dialled: {error.message}", False
        self._dialled[node.wallet] = url
        witnesses = self._witnesses(node, url)
        self._asked_at |= {witness.wallet: self._now() for witness in witnesses}
        answers = await asyncio.gather(*(self._ask(witness, node.node_id, url) for witness in witnesses))
        said = [(witness, answer) for witness, answer in zip(witnesses, answers, strict=True) if answer is not None]
        if any(answer.works for _, answer in said):
            return "", True
        if len(said) < (NOES_TO_STAY if is_relayed(node.url) else NOES):
            return "", False
        who = ", ".join(witness.name or witness.node_id for witness, _ in said)
        return f"the tracker can dial it, other nodes cannot ({who}): {said[0][1].why}", True

    def _witnesses(self, node: Node, url: str) -> list[Node]:
        """Other wallets on other machines, relayed or dialled by the tracker: one of each machine, those first that
        were not asked for longest."""
        others = [
            other
            for other in self._fleet.nodes()
            if other.wallet != node.wallet
            and (is_relayed(other.url) or self._dialled.get(other.wallet) == other.url)
            and not self._fleet.is_suspect(other)
        ]
        others.sort(key=lambda other: (self._asked_at.get(other.wallet, -math.inf), other.node_id))
        machines: dict[str, Node] = {}
        for other in others:
            machines.setdefault(other.wallet if is_relayed(other.url) else _host(other.url), other)
        machines.pop(_host(url), None)
        return list(machines.values())[:WITNESSES]


def is_relayed(url: str) -> bool:
    return url.startswith("relay://")


def _url_to_try(lease: Lease) -> str:
    return lease.claim.direct_url if is_relayed(lease.node.url) else lease.node.url


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
