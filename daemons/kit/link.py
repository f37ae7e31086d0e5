"""All links of one daemon: dialling, HELLO, and which link to a peer is in use (docs/adr/0023)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from daemons.kit.lanes import CLOSE_S, DUPLICATE, REFUSED, Link, Socket, keep_lanes_apart
from daemons.kit.proof import Prover
from daemons.kit.tasks import Tasks
from daemons.kit.tls import peer_wallet
from meshnet.domain.errors import EpochChanged, Forbidden, FrameError, MeshnetError, NodeFailed, Overloaded
from meshnet.wire import api, frames
from meshnet.wire.messages import Hello
from meshnet.wire.relay import dialled_url

__all__ = ["CONNECT_S", "Link", "Links"]

log = logging.getLogger(__name__)

CONNECT_S = 2.0
"""TCP, upgrade and HELLO: a far host answers in 0.3 s; beyond 2 s another node serves the call sooner."""

OnMessage = Callable[[Link, frames.Hidden | msgspec.Struct], None]
OnClosed = Callable[[Link], None]


class Links:
    """At most one link per peer in use, dialled on demand, shared by everyone who asks.

    When both ends dial at once, two links exist for a moment: both ends use the one dialled by the smaller id, and the
    other lives on only for the sessions that began on it. Any other second link means that the peer lost its end of
    the first, which is closed at once.
    """

    def __init__(
        self,
        hello: Callable[[], Hello],
        on_message: OnMessage,
        on_closed: OnClosed,
        http: aiohttp.ClientSession,
        now: Callable[[], float],
        prover: Prover | None = None,
    ) -> None:
        """Without a ``prover`` peers are taken for who they say."""
        self._hello = hello
        self._prover = prover
        self._on_message = on_message
        self._on_closed = on_closed
        self._http = http
        self._now = now
        self._open: set[Link] = set()
        self._in_use: dict[str, Link] = {}
        self._dialling: dict[tuple[str, str], asyncio.Task[Link]] = {}
        """By peer and url: a peer that moved is not waited for where it was."""
        self._tasks = Tasks("links")

    def __len__(self) -> int:
        return len(self._open)

    def get(self, peer_id: str) -> Link | None:
        link = self._in_use.get(peer_id)
        return link if link is not None and not link.closed.is_set() else None

    async def to(self, peer_id: str, url: str, timeout_s: float = CONNECT_S) -> Link:
        """The open link to this peer, or a new one. Raises NodeFailed naming the peer: "unreachable", or
        "epoch_changed" when another node answers at that url."""
        link = self.get(peer_id)
        if link is not None:
            return link
        where = (peer_id, url)
        dial = self._dialling.get(where)
        if dial is None:
            dial = self._tasks.start(self._dial(peer_id, url, timeout_s), f"dial {peer_id}", quiet=True)
            self._dialling[where] = dial
            dial.add_done_callback(lambda done: self._dialling.pop(where, None))
        return await asyncio.shield(dial)

    async def accept(self, request: web.Request) -> web.StreamResponse:
        """The handler of GET /v1/link."""
        socket = web.WebSocketResponse(
            compress=False, max_msg_size=frames.MAX_MESSAGE_BYTES, autoping=False, timeout=CLOSE_S
        )
        await socket.prepare(request)
        if request.transport is not None:
            keep_lanes_apart(request.transport.get_extra_info("socket"))
        try:
            async with asyncio.timeout(CONNECT_S):
                peer = await _receive_hello(socket)
            self._check_dialler(peer, request)
        except (FrameError, MeshnetError, TimeoutError) as error:
            log.warning("link refused address=%s reason=%s", request.remote, error)
            await socket.close(code=REFUSED, message=str(error).encode()[:120])
            return socket
        hello = self._hello()
        await socket.send_bytes(frames.encode_control(self._prover.answer(hello, peer) if self._prover else hello))
        link = Link(socket, peer, dialled=False, now=self._now)
        self._admit(link)
        await self._serve(link)
        return socket

    def _check_dialler(self, peer: Hello, request: web.Request) -> None:
        """Raises MeshnetError unless the dialler proves who it says it is."""
        if self._prover is not None:
            transport = request.transport
            tls = peer_wallet(transport.get_extra_info("ssl_object")) if transport is not None else None
            self._prover.check_dialler(peer, self._hello().peer_id, tls)

    async def close(self) -> None:
        for link in list(self._open):
            await link.shut()
        await self._tasks.close()

    async def _dial(self, peer_id: str, url: str, timeout_s: float) -> Link:
        try:
            async with asyncio.timeout(timeout_s):
                socket = await self._connect(peer_id, url)
                peer = await self._greet(socket, peer_id, url)
        except TimeoutError:
            raise _unreachable(peer_id, f"{url} does not answer within {timeout_s:g} s") from None
        link = Link(socket, peer, dialled=True, now=self._now)
        self._admit(link)
        self._tasks.start(self._serve(link), f"link {peer_id}")
        return self.get(peer_id) or link

    async def _connect(self, peer_id: str, url: str) -> aiohttp.ClientWebSocketResponse:
        try:
            return await self._http.ws_connect(
                dialled_url(url).rstrip("/") + api.LINK,
                max_msg_size=frames.MAX_MESSAGE_BYTES,
                autoping=False,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),  # pyright: ignore[reportCallIssue] (attrs class)
            )
        except (aiohttp.ClientError, OSError, ValueError, MeshnetError) as error:
            raise _unreachable(peer_id, _why_no_socket(url, error)) from None

    async def _greet(self, socket: aiohttp.ClientWebSocketResponse, peer_id: str, url: str) -> Hello:
        """Exchange HELLOs on a fresh socket, which is closed whenever this fails."""
        keep_lanes_apart(socket.get_extra_info("socket"))
        greeted = False
        try:
            hello = self._prover.dial(self._hello(), peer_id) if self._prover else self._hello()
            await socket.send_bytes(frames.encode_control(hello))
            peer = await _receive_hello(socket)
            if peer.peer_id != peer_id:
                raise NodeFailed(
                    f"{url} is {peer.peer_id} now, not {peer_id}.", node_id=peer_id, code=EpochChanged.code
                )
            if self._prover is not None:
                self._prover.check_answer(peer, hello, peer_wallet(socket.get_extra_info("ssl_object")))
            greeted = True
            return peer
        except (FrameError, Forbidden, Overloaded) as error:
            raise _unreachable(peer_id, f"{url} refused the link: {error}") from None
        except (ConnectionError, aiohttp.ClientError):
            raise _unreachable(peer_id, f"{url} closed the link before its HELLO") from None
        finally:
            if not greeted:
                await socket.close()

    def _admit(self, link: Link) -> None:
        self._open.add(link)
        old = self.get(link.peer_id)
        if old is None:
            self._in_use[link.peer_id] = link
        elif self._is_crossing(old, link):
            ours_stays = self._hello().peer_id < link.peer_id
            stays, goes = (link, old) if link.dialled == ours_stays else (old, link)
            self._in_use[link.peer_id] = stays
            goes.retired = True
        else:
            self._in_use[link.peer_id] = link
            self._tasks.start(old.shut(DUPLICATE), f"replace {link.peer_id}")

    def _is_crossing(self, old: Link, new: Link) -> bool:
        # A dial in flight is no older than CONNECT_S: a later one was started without a link, so the old one is dead.
        same_process = old.peer.boot == new.peer.boot
        return same_process and old.dialled != new.dialled and new.opened_at - old.opened_at < CONNECT_S

    async def _serve(self, link: Link) -> None:
        """A link's life: reader, writer and ping until one of them ends; then everyone who uses it is told."""
        tasks = Tasks(f"link.{link.peer_id}")
        code, reason = 1000, ""
        try:
            loops = [
                tasks.start(link.read(self._on_message), "read", quiet=True),
                tasks.start(link.write(), "write"),
                tasks.start(link.keep_alive(), "ping"),
            ]
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            code, reason = _why_closed(link, done)
        finally:
            link.cut()
            self._open.discard(link)
            if self._in_use.get(link.peer_id) is link:
                self._promote(link.peer_id)
            self._on_closed(link)
            await tasks.close()
            await link.shut(code, reason)

    def _promote(self, peer_id: str) -> None:
        del self._in_use[peer_id]
        for other in self._open:
            if other.peer_id == peer_id and not other.closed.is_set():
                other.retired = False
                self._in_use[peer_id] = other


def _why_closed(link: Link, done: set[asyncio.Task[None]]) -> tuple[int, str]:
    for task in done:
        error = task.exception()
        if isinstance(error, FrameError):
            log.warning("link refused peer=%s reason=%s", link.peer_id, error.message)
            return 1002, error.message
        if error is not None:
            log.error("link broke peer=%s error=%r", link.peer_id, error, exc_info=error)
            return 1011, "internal error"
    return 1000, ""


def _unreachable(peer_id: str, why: str) -> NodeFailed:
    return NodeFailed(f"{peer_id} is unreachable: {why}.", node_id=peer_id, code="unreachable")


def _why_no_socket(url: str, error: Exception) -> str:
    """In our words: those of the HTTP library name its own settings, and land before whoever asked a question."""
    match error:
        case MeshnetError():
            return f"{url}: {error.message}"
        case aiohttp.WSServerHandshakeError():
            return f"{url} takes no link (HTTP {error.status})"
        case aiohttp.ClientConnectorDNSError():
            return f"no machine is found by the name in {url}"
        case aiohttp.ClientSSLError():
            return f"{url} does not prove by TLS who it is"
        case aiohttp.ClientConnectorError() if not error.os_error.errno and error.os_error.strerror:
            return f"{url}: {error.os_error.strerror}"  # Of our own dialling: daemons.kit.dial.
        case OSError() if _errno(error) == errno.ECONNREFUSED:
            return f"nothing listens at {url}"
        case aiohttp.ClientError() | OSError():
            return f"{url} does not answer"
        case _:
            return f"{url} is no address"


def _errno(error: OSError) -> int | None:
    """Of several addresses that were tried, the first one's: aiohttp hands on a group's words with one number."""
    return error.os_error.errno if isinstance(error, aiohttp.ClientConnectorError) else error.errno


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
