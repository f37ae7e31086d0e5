"""A relay's interface for its operator, typed."""

from __future__ import annotations

import httpx

from meshnet.client.http import Door
from meshnet.wire.relay import RELAYS, SeatMessage


class RelayClient:
    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._door = Door(http, url, "relay", "start it with: meshnet up relay")

    async def seats(self) -> tuple[SeatMessage, ...]:
        """Who sits there, with links and bytes."""
        return await self._door.ask("GET", RELAYS, tuple[SeatMessage, ...])
