"""A node's interface, typed."""

from __future__ import annotations

import httpx

from meshnet.client.http import Door
from meshnet.wire import api
from meshnet.wire.messages import Health, NodeStatus


class NodeClient:
    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._door = Door(http, url, "node", "start it with: meshnet up node")

    async def status(self) -> NodeStatus:
        return await self._door.ask("GET", api.STATUS, NodeStatus)

    async def health(self) -> Health:
        return await self._door.ask("GET", api.HEALTH, Health)
