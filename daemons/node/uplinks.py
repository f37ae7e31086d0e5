"""All relays of a node: a seat at each, and the address it is reached at now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from random import Random

import aiohttp

from daemons.kit.identity import WalletKey
from daemons.kit.tasks import Tasks
from daemons.node.uplink import Uplink
from meshnet.domain.ids import Wallet
from meshnet.wire.messages import HeartbeatResponse, RegisterResponse

log = logging.getLogger(__name__)

MAX_RELAYS = 4
"""Two are what one needs: the second takes over when the first dies. More cost a connection each."""


@dataclass(frozen=True, slots=True)
class Means:
    """What an uplink is given. ``trackers``: whose tickets let in. ``http`` dials the relays' control ports."""

    key: WalletKey
    name: str
    trackers: Callable[[], Container[Wallet]]
    http: aiohttp.ClientSession
    rng: Random
    now: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Address:
    """Where others reach us: at our own address, or through relays. ``server`` as ``Uplinks.add`` takes it."""

    def __init__(
        self, direct_url: str, uplinks: Uplinks, server: Callable[[], asyncio.BaseProtocol], relays: Sequence[str]
    ) -> None:
        """``relays``: those the owner named; with any, we begin there."""
        self._direct_url = direct_url
        self._uplinks = uplinks
        self._server = server
        self._relays: tuple[str, ...] = ()
        self._is_direct = not relays
        for url in relays:
            uplinks.add(url, server)

    def now(self) -> str:
        """Empty while we are reachable nowhere."""
        return self._direct_url if self._is_direct else self._uplinks.url()

    def on_registered(self, answer: RegisterResponse) -> None:
        self._relays = answer.relays

    def on_beat(self, answer: HeartbeatResponse) -> None:
        """The tracker dialled us back: nobody gets through, or somebody does after all."""
        if answer.unreachable and self._is_direct and (self._relays or len(self._uplinks)):
            log.warning("nobody can dial us url=%s relays=%s", self._direct_url, ",".join(self._relays))
            self._is_direct = False
            for url in self._relays:
                self._uplinks.add(url, self._server)
        elif answer.has_direct_way and not self._is_direct:
            log.info("we can be dialled directly url=%s", self._direct_url)
            self._is_direct = True


class Uplinks:
    """``on_change`` hears whenever ``url`` became another."""

    def __init__(self, means: Means, on_change: Callable[[], None]) -> None:
        self._means = means
        self._on_change = on_change
        self._uplinks: dict[str, Uplink] = {}
        self._tasks = Tasks("uplinks")

    def __len__(self) -> int:
        return len(self._uplinks)

    def add(self, relay_url: str, server: Callable[[], asyncio.BaseProtocol]) -> None:
        """Sit at one more relay; ``server`` makes the protocol of our own HTTP server."""
        if relay_url in self._uplinks or len(self._uplinks) >= MAX_RELAYS:
            return
        means = self._means
        uplink = Uplink(
            relay_url,
            means.key,
            means.name,
            means.trackers,
            server,
            means.http,
            means.rng,
            means.now,
            means.wall,
            means.sleep,
            self._on_change,
        )
        self._uplinks[relay_url] = uplink
        self._tasks.start(uplink.run(), relay_url)

    def url(self) -> str:
        """``relay://…`` of the first relay, in the order given, where we have a seat; empty while there is none."""
        return next((uplink.address.url for uplink in self._uplinks.values() if uplink.address is not None), "")

    async def close(self) -> None:
        await self._tasks.close()
        for uplink in self._uplinks.values():
            await uplink.close()
