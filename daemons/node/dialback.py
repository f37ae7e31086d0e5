"""Whether another node answers us: asked by our tracker, before routes depend on that node's address (ADR-0041)."""

from __future__ import annotations

import asyncio
import logging

import aiohttp

from daemons.kit.link import CONNECT_S, Link
from daemons.kit.tasks import Tasks
from meshnet.domain.errors import MeshnetError, NodeFailed
from meshnet.domain.ids import parse_node_id
from meshnet.wire import api
from meshnet.wire.decode import decode_json
from meshnet.wire.messages import Dial, Dialled, Health
from meshnet.wire.relay import check_node_url, dialled_url

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Dials for a tracker at one time; what it asks beyond is not answered, which speaks for nobody and against nobody."""
MAX_HEALTH_BYTES = 4096


class DialBack:
    """One node's. ``http`` checks where it connects to, and the key of a ``tls://`` address."""

    def __init__(self, http: aiohttp.ClientSession, tasks: Tasks) -> None:
        self._http = http
        self._tasks = tasks
        self._running = 0

    def on_dial(self, link: Link, ask: Dial) -> None:
        if self._running >= AT_ONCE:
            log.info("dial not tried node=%s reason=busy", ask.node_id)
            return
        self._running += 1
        self._tasks.start(self._answer(link, ask), f"dial {ask.node_id}")

    async def _answer(self, link: Link, ask: Dial) -> None:
        try:
            why = await self.look(ask)
            link.post(Dialled(ask.node_id, ask.url, not why, _printable(why)[:512]))
        except NodeFailed:
            log.info("dial not told node=%s reason=link_closed", ask.node_id)
        finally:
            self._running -= 1

    async def look(self, ask: Dial) -> str:
        """Why that node is not to be reached there, "" when it is. By a line of its own: links are left alone."""
        try:
            check_node_url(ask.url)
            wallet = await self._wallet_at(ask.url.rstrip("/"))
            expected, _ = parse_node_id(ask.node_id)
        except TimeoutError:
            return f"{ask.url} does not answer within {CONNECT_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{ask.url}: {error or type(error).__name__}"
        except MeshnetError as error:
            return error.message
        return "" if wallet == expected else f"{ask.url} is {wallet or 'no node'}"

    async def _wallet_at(self, url: str) -> str:
        async with (
            asyncio.timeout(CONNECT_S),
            self._http.get(
                dialled_url(url) + api.HEALTH, headers={"Connection": "close"}, allow_redirects=False
            ) as answer,
        ):
            return decode_json(await answer.content.read(MAX_HEALTH_BYTES), Health).wallet


def _printable(text: str) -> str:
    """An error may quote what a stranger answered."""
    return "".join(char if char.isprintable() else " " for char in text)
