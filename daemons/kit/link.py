"""Links: one persistent WebSocket between two daemons, used both ways, carrying the frames of many sessions.

This file owns dialling, HELLO, ping, send order and bounds. It does not know what a session is: whole frames go to
``on_message``, and a link's end to ``on_closed``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from daemons.kit.tasks import Tasks
from meshnet.domain.errors import EpochChanged, FrameError, NodeFailed
from meshnet.wire import api, frames
from meshnet.wire.messages import Hello

log = logging.getLogger(__name__)

CONNECT_S = 2.0
"""TCP, upgrade and HELLO: a far host answers in 0.3 s; beyond 2 s another node serves the call sooner."""
PING_S = 5.0
DEAD_AFTER_S = 2.2 * PING_S
"""Two pings without any sign of life, and a little for the second one's answer: the peer is gone."""
BULK_BYTES = 4 * 1024 * 1024
"""Prefill rows queued on one link: about 3 s of a 10 Mbit/s line; senders wait beyond it."""
URGENT_BYTES = 16 * 1024 * 1024
"""Control and decode frames queued on one link. A peer that lets this fill reads nothing: the link is cut."""

DUPLICATE = 4001
"""Close code: the other link between us stays."""
REFUSED = 4002
"""Close code: another wire version, or HELLO was not understood."""


class Socket(Protocol):
    """What a Link needs of a WebSocket; aiohttp's client and server ends both have it."""

    async def send_bytes(self, data: bytes) -> None: ...
    async def ping(self, message: bytes = b"") -> None: ...
    async def pong(self, message: bytes = b"") -> None: ...
    async def receive(self, timeout: float | None = None) -> aiohttp.WSMessage: ...
    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool: ...


class Link:
    """One end of an open link, after HELLO. ``send`` keeps order within a lane; urgent overtakes bulk."""

    def __init__(self, socket: Socket, peer: Hello, *, dialled: bool) -> None:
        self.peer = peer
        self.dialled = dialled
        self.heard_at = 0.0
        self.closed = asyncio.Event()
        self._socket = socket
        self._urgent: deque[bytes] = deque()
        self._bulk: deque[bytes] = deque()
        self._urgent_bytes = self._bulk_bytes = 0
        self._sending = False
        self._wake = asyncio.Event()
        self._room = asyncio.Condition()

    @property
    def peer_id(self) -> str:
        return self.peer.peer_id

    def __repr__(self) -> str:
        return f"<Link {self.peer_id} {'closed' if self.closed.is_set() else 'open'}>"

    async def send(self, message: msgspec.Struct | bytes, *, bulk: bool = False) -> None:
        """Send a control struct or an encoded frame. ``bulk`` (prefill rows) waits for room and yields to the rest.

        Raises NodeFailed(code="link_closed") naming the peer when the link is or gets closed.
        """
        data = message if isinstance(message, bytes) else frames.encode_control(message)
        if bulk:
            async with self._room:
                await self._room.wait_for(lambda: self._bulk_bytes < BULK_BYTES or self.closed.is_set())
        if self.closed.is_set():
            raise self._gone()
        if not self._sending and not self._urgent and not self._bulk:
            await self._send_now(data)
        else:
            self._enqueue(data, bulk)

    async def _send_now(self, data: bytes) -> None:
        # The common case on a quiet link: no queue, no wake-up of another task.
        self._sending = True
        try:
            await self._socket.send_bytes(data)
        except (ConnectionError, RuntimeError, aiohttp.ClientError):
            self.closed.set()
            raise self._gone() from None
        finally:
            self._sending = False
            if self._urgent or self._bulk:
                self._wake.set()

    def _enqueue(self, data: bytes, bulk: bool) -> None:
        if bulk:
            self._bulk.append(data)
            self._bulk_bytes += len(data)
        else:
            self._urgent.append(data)
            self._urgent_bytes += len(data)
            if self._urgent_bytes > URGENT_BYTES:
                log.warning("link cut peer=%s reason=slow queued_bytes=%d", self.peer_id, self._urgent_bytes)
                self.closed.set()
                self._wake.set()
                raise self._gone()
        self._wake.set()

    async def write(self) -> None:
        """The writer's loop: drains both lanes, urgent first, until the link closes."""
        while not self.closed.is_set():
            await self._wake.wait()
            self._wake.clear()
            while (self._urgent or self._bulk) and not self._sending and not self.closed.is_set():
                await self._send_next()

    async def _send_next(self) -> None:
        self._sending = True
        try:
            if self._urgent:
                data = self._urgent.popleft()
                self._urgent_bytes -= len(data)
            else:
                data = self._bulk.popleft()
                self._bulk_bytes -= len(data)
                async with self._room:
                    self._room.notify_all()
            await self._socket.send_bytes(data)
        except (ConnectionError, RuntimeError, aiohttp.ClientError):
            self.closed.set()
        finally:
            self._sending = False

    async def read(
        self, on_message: Callable[[Link, frames.Hidden | msgspec.Struct], None], now: Callable[[], float]
    ) -> None:
        """The reader's loop: decoded frames to ``on_message``, until the link closes or sends nonsense."""
        while not self.closed.is_set():
            message = await self._socket.receive()
            self.heard_at = now()
            if message.type is WSMsgType.BINARY:
                on_message(self, frames.decode(message.data))
            elif message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is not WSMsgType.PONG:
                if message.type is WSMsgType.TEXT:
                    raise FrameError("a text message on a link")
                return

    async def keep_alive(self, now: Callable[[], float]) -> None:
        """Ping every PING_S; two silent ones end the link."""
        self.heard_at = now()
        while not self.closed.is_set():
            await asyncio.sleep(PING_S)
            if now() - self.heard_at > DEAD_AFTER_S:
                log.warning("link silent peer=%s silent_s=%.1f", self.peer_id, now() - self.heard_at)
                return
            await self._socket.ping()

    async def shut(self, code: int = 1000, reason: str = "") -> None:
        self.closed.set()
        self._wake.set()
        async with self._room:
            self._room.notify_all()
        await self._socket.close(code=code, message=reason.encode()[:120])

    def _gone(self) -> NodeFailed:
        return NodeFailed(f"The link to {self.peer_id} is closed.", node_id=self.peer_id, code="link_closed")


class Links:
    """All links of one daemon: at most one per peer in use, dialled on demand, shared by everyone who asks."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        on_message: Callable[[Link, frames.Hidden | msgspec.Struct], None],
        on_closed: Callable[[Link], None],
        http: aiohttp.ClientSession,
        now: Callable[[], float],
    ) -> None:
        self._hello = hello
        self._on_message = on_message
        self._on_closed = on_closed
        self._http = http
        self._now = now
        self._open: dict[str, Link] = {}
        self._dialling: dict[str, asyncio.Task[Link]] = {}
        self._arrived: dict[str, asyncio.Event] = {}
        self._tasks = Tasks("links")

    def __len__(self) -> int:
        return len(self._open)

    def get(self, peer_id: str) -> Link | None:
        link = self._open.get(peer_id)
        return link if link is not None and not link.closed.is_set() else None

    async def to(self, peer_id: str, url: str, timeout_s: float = CONNECT_S) -> Link:
        """The open link to this peer, or a new one. Raises NodeFailed(code="unreachable") or EpochChanged (another
        node answers at that url), naming the peer."""
        link = self.get(peer_id)
        if link is not None:
            return link
        dial = self._dialling.get(peer_id)
        if dial is None:
            dial = self._tasks.start(self._dial(peer_id, url, timeout_s), f"dial {peer_id}")
            self._dialling[peer_id] = dial
            dial.add_done_callback(lambda done: self._dialled(peer_id, done))
        return await asyncio.shield(dial)

    def _dialled(self, peer_id: str, dial: asyncio.Task[Link]) -> None:
        if self._dialling.get(peer_id) is dial:
            del self._dialling[peer_id]

    async def accept(self, request: web.Request) -> web.StreamResponse:
        """The handler of GET /v1/link."""
        socket = web.WebSocketResponse(compress=False, max_msg_size=frames.MAX_MESSAGE_BYTES, autoping=False)
        await socket.prepare(request)
        try:
            peer = await asyncio.wait_for(_receive_hello(socket), CONNECT_S)
        except (FrameError, TimeoutError) as error:
            await socket.close(code=REFUSED, message=str(error).encode()[:120])
            return socket
        if self._stays(peer):
            await socket.close(code=DUPLICATE)
            return socket
        await socket.send_bytes(frames.encode_control(self._hello()))
        await self._run(Link(socket, peer, dialled=False))
        return socket

    async def close(self) -> None:
        for link in list(self._open.values()):
            await link.shut()
        await self._tasks.close()

    async def _dial(self, peer_id: str, url: str, timeout_s: float) -> Link:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    link = self.get(peer_id) or await self._dial_once(peer_id, url)
                    if link is not None:
                        return link
                    await self._wait_for_theirs(peer_id)
        except TimeoutError:
            raise NodeFailed(
                f"{peer_id} at {url} does not answer within {timeout_s:g} s.", node_id=peer_id, code="unreachable"
            ) from None

    async def _dial_once(self, peer_id: str, url: str) -> Link | None:
        """None: they refused ours because the link they dialled stays."""
        try:
            socket = await self._http.ws_connect(
                url.rstrip("/") + api.LINK, max_msg_size=frames.MAX_MESSAGE_BYTES, autoping=False, compress=0
            )
        except (aiohttp.ClientError, OSError) as error:
            raise NodeFailed(
                f"{peer_id} at {url} is unreachable: {error}.", node_id=peer_id, code="unreachable"
            ) from None
        await socket.send_bytes(frames.encode_control(self._hello()))
        try:
            peer = await _receive_hello(socket)
        except FrameError as error:
            await socket.close()
            if socket.close_code == DUPLICATE:
                return None
            raise NodeFailed(
                f"{peer_id} at {url} refused the link: {error}", node_id=peer_id, code="unreachable"
            ) from None
        if peer.peer_id != peer_id:
            await socket.close()
            raise EpochChanged(f"{url} is {peer.peer_id} now, not {peer_id}.")
        link = Link(socket, peer, dialled=True)
        self._admit(link)
        self._tasks.start(self._run(link), f"link {peer_id}")
        return link

    async def _wait_for_theirs(self, peer_id: str) -> None:
        arrived = self._arrived.setdefault(peer_id, asyncio.Event())
        try:
            # Theirs is open or about to be; 0.2 s later we try again, in case they gave it up meanwhile.
            await asyncio.wait_for(arrived.wait(), 0.2)
        except TimeoutError:
            pass
        finally:
            self._arrived.pop(peer_id, None)

    def _stays(self, peer: Hello) -> bool:
        """Whether our own link to this peer stays and theirs is refused: the one dialled by the smaller id stays."""
        if not self._hello().peer_id < peer.peer_id:
            return False
        mine = self.get(peer.peer_id)
        if mine is not None:
            return mine.dialled and mine.peer.boot == peer.boot
        return peer.peer_id in self._dialling

    def _admit(self, link: Link) -> None:
        old, self._open[link.peer_id] = self._open.get(link.peer_id), link
        if old is not None and not old.closed.is_set():
            self._tasks.start(old.shut(DUPLICATE), f"replace {link.peer_id}")
        if link.peer_id in self._arrived:
            self._arrived[link.peer_id].set()

    async def _run(self, link: Link) -> None:
        """A link's life: reader, writer and ping until one of them ends; then everyone who uses it is told."""
        if self._open.get(link.peer_id) is not link:
            self._admit(link)
        link.heard_at = self._now()
        tasks = Tasks(f"link.{link.peer_id}")
        code, reason = 1000, ""
        try:
            loops = [
                tasks.start(link.read(self._on_message, self._now), "read"),
                tasks.start(link.write(), "write"),
                tasks.start(link.keep_alive(self._now), "ping"),
            ]
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if isinstance(error := task.exception(), FrameError):
                    code, reason = 1002, error.message
                    log.warning("link refused peer=%s reason=%s", link.peer_id, error.message)
        finally:
            link.closed.set()
            if self._open.get(link.peer_id) is link:
                del self._open[link.peer_id]
            self._on_closed(link)
            await tasks.close()
            await link.shut(code, reason)


async def _receive_hello(socket: Socket) -> Hello:
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        raise FrameError("the peer closed the link before its HELLO")
    hello = frames.decode(message.data)
    if not isinstance(hello, Hello):
        raise FrameError(f"expected HELLO, got {type(hello).__name__}")
    if hello.wire_version != api.WIRE_VERSION:
        raise FrameError(f"the peer speaks wire version {hello.wire_version}, not {api.WIRE_VERSION}")
    return hello
