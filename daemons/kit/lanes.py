"""Links: one persistent WebSocket between two daemons, used both ways, carrying the frames of many sessions.

This file owns one open link: send order, bounds, ping. It does not know what a session is: whole frames go to
``on_message``. ``daemons/kit/link.py`` owns who is linked to whom.
"""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import WSMsgType

from meshnet.domain.errors import FrameError, NodeFailed
from meshnet.wire import frames
from meshnet.wire.messages import Hello

log = logging.getLogger(__name__)

PING_S = 5.0
DEAD_AFTER_S = 2.2 * PING_S
"""Two pings without any sign of life, and a little for the second one's answer: the peer is gone."""
RETIRED_IDLE_S = 60.0
"""A link that lost to another one of the same pair closes after this long without frames: a session is dropped as
idle by then, so nothing can be lost with it."""
BULK_BYTES = 256 * 1024 * 1024
"""Prefill rows queued on one link. The head's window keeps a session at a few chunks (4 MiB each at hidden 4,096), so
only a peer that reads nothing lets this fill: the link is cut."""
URGENT_BYTES = 16 * 1024 * 1024
"""Control and decode frames queued on one link; as above."""
UNSENT_BYTES = 128 * 1024
"""What the kernel may hold unsent (TCP_NOTSENT_LOWAT): beyond it the order of our lanes would be lost to its buffer,
which grows to megabytes. Two messages: enough to keep a fast line busy."""
CLOSE_S = 1.0
"""How long the closing handshake may take: part of a stop within 5 s."""

DUPLICATE = 4001
"""Close code: another link between the two of us is in use."""
REFUSED = 4002
"""Close code: another wire version, or HELLO was not understood."""

SEND_ERRORS = (ConnectionError, RuntimeError, aiohttp.ClientError)
"""What aiohttp raises when the socket is gone, on its client and its server end."""


class Socket(Protocol):
    """What a Link needs of a WebSocket; aiohttp's client and server ends both have it."""

    async def send_bytes(self, data: bytes) -> None: ...
    async def ping(self, message: bytes = b"") -> None: ...
    async def pong(self, message: bytes = b"") -> None: ...
    async def receive(self, timeout: float | None = None) -> aiohttp.WSMessage: ...
    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool: ...


class Link:
    """One end of an open link, after HELLO. ``post`` keeps order within a lane; urgent overtakes bulk."""

    def __init__(self, socket: Socket, peer: Hello, *, dialled: bool, now: Callable[[], float]) -> None:
        self.peer = peer
        self.dialled = dialled
        self.opened_at = self.heard_at = self.used_at = now()
        self.retired = False
        """Another link of the same pair is in use; this one lives on for the sessions that began on it."""
        self.closed = asyncio.Event()
        self._now = now
        self._socket = socket
        self._urgent: deque[bytes] = deque()
        self._bulk: deque[bytes] = deque()
        self._urgent_bytes = self._bulk_bytes = 0
        self._wake = asyncio.Event()

    @property
    def peer_id(self) -> str:
        return self.peer.peer_id

    @property
    def queued_bytes(self) -> int:
        return self._urgent_bytes + self._bulk_bytes

    def __repr__(self) -> str:
        return f"<Link {self.peer_id} {'closed' if self.closed.is_set() else 'open'}>"

    def post(self, message: msgspec.Struct | bytes, *, bulk: bool = False) -> None:
        """Queue a control struct or an encoded frame; ``bulk`` (prefill rows) yields to the rest. Never waits.

        Raises NodeFailed(code="link_closed") naming the peer when the link is closed or its queue is full, in which
        case it is cut.
        """
        if self.closed.is_set():
            raise self._gone()
        data = message if isinstance(message, bytes) else frames.encode_control(message)
        if bulk:
            self._bulk.append(data)
            self._bulk_bytes += len(data)
        else:
            self._urgent.append(data)
            self._urgent_bytes += len(data)
        self._wake.set()
        if self._urgent_bytes > URGENT_BYTES or self._bulk_bytes > BULK_BYTES:
            log.warning("link cut peer=%s reason=slow queued_bytes=%d", self.peer_id, self.queued_bytes)
            self.cut()
            raise self._gone()

    async def send(self, message: msgspec.Struct | bytes, *, bulk: bool = False) -> None:
        """``post`` for those who already wait for things."""
        self.post(message, bulk=bulk)

    def cut(self) -> None:
        """End the link without waiting; ``serve`` does the rest."""
        self.closed.set()
        self._wake.set()

    async def write(self) -> None:
        """The writer's loop: drains both lanes, urgent first, until the link closes."""
        while not self.closed.is_set():
            if not (self._urgent or self._bulk):
                self._wake.clear()
                await self._wake.wait()
                continue
            data = self._next()
            self.used_at = self._now()
            try:
                await self._socket.send_bytes(data)
            except SEND_ERRORS:
                return

    def _next(self) -> bytes:
        if self._urgent:
            data = self._urgent.popleft()
            self._urgent_bytes -= len(data)
        else:
            data = self._bulk.popleft()
            self._bulk_bytes -= len(data)
        return data

    async def read(self, on_message: Callable[[Link, frames.Hidden | msgspec.Struct], None]) -> None:
        """The reader's loop: decoded frames to ``on_message``, until the link closes or sends nonsense (FrameError)."""
        while not self.closed.is_set():
            message = await self._socket.receive()
            self.heard_at = self._now()
            if message.type is WSMsgType.BINARY:
                self.used_at = self.heard_at
                on_message(self, frames.decode(message.data))
            elif message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                raise FrameError("a text message on a link")
            elif message.type is WSMsgType.ERROR and isinstance(message.data, aiohttp.WebSocketError):
                raise FrameError(f"no valid WebSocket: {message.data}")
            elif message.type is not WSMsgType.PONG:
                return

    async def keep_alive(self) -> None:
        """Ping every PING_S until two stay silent, or a retired link has nothing to do."""
        while True:
            await asyncio.sleep(PING_S)
            if not self.is_alive():
                return
            try:
                await self._socket.ping()
            except SEND_ERRORS:
                return

    def is_alive(self) -> bool:
        """Whether the peer was heard of lately, and this link is still of use to the end that dialled it."""
        now = self._now()
        if now - self.heard_at > DEAD_AFTER_S:
            log.warning("link silent peer=%s silent_s=%.1f", self.peer_id, now - self.heard_at)
            return False
        return not (self.retired and self.dialled and now - self.used_at > RETIRED_IDLE_S)

    async def shut(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket, for CLOSE_S at most."""
        self.cut()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close(code=code, message=reason.encode()[:120])
        except (TimeoutError, *SEND_ERRORS):
            log.info("link did not close cleanly peer=%s", self.peer_id)

    def _gone(self) -> NodeFailed:
        return NodeFailed(f"The link to {self.peer_id} is closed.", node_id=self.peer_id, code="link_closed")


def keep_lanes_apart(socket: Any) -> None:
    """Bound what the kernel holds unsent, where it can be told to."""
    option = getattr(sockets, "TCP_NOTSENT_LOWAT", None)
    if socket is not None and option is not None and socket.family in (sockets.AF_INET, sockets.AF_INET6):
        socket.setsockopt(sockets.IPPROTO_TCP, option, UNSENT_BYTES)
