"""All relays of a node: a seat at each, and the address it is reached at now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from random import Random

import aiohttp

from daemons.kit.identity import WalletKey
from daemons.kit.tasks import Tasks
from daemons.node.uplink import Uplink
from meshnet.domain.ids import Wallet

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
