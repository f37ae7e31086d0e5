"""The relay put together: control connections of nodes, the splice port, its round, its life."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from aiohttp import WSMsgType, web
from msgspec import Struct

import meshnet
from daemons.kit.guard import Guard, guarded_names, guarding
from daemons.kit.tasks import Tasks, every
from daemons.kit.web import Site, json_response, make_app, serve
from daemons.relay.metrics import CONTENT_TYPE, render
from daemons.relay.seats import Seat, Seats
from daemons.relay.settings import LOOPBACK, RelayConfig
from daemons.relay.splice import Desk, End
from meshnet.domain.errors import FrameError, MeshnetError, Overloaded, StartError
from meshnet.domain.keys import KeyRing
from meshnet.wire import access, api
from meshnet.wire.messages import Health
from meshnet.wire.relay import (
    CONTROL,
    MAX_CONTROL_BYTES,
    RELAYS,
    Challenge,
    Leaving,
    Prove,
    Refused,
    SeatMessage,
    Welcome,
    decode,
    encode,
)

log = logging.getLogger(__name__)

ROUND_S = 1.0
"""How often waiting and idle sockets are looked at: limits in seconds hold to a second."""
PING_S = 15.0
"""A dead control connection is known within 1.5 of these; a node without one cannot be reached."""
WRITE_S = 10.0
"""For a node to take one small message: then its line is dead or it is stopped."""
BACK_IN_S = 2.0
BACK_SPREAD_S = 15.0
"""What a stopping relay asks of its nodes: a restart takes 2 s, and 256 nodes over 15 s are 17 a second."""
MAX_BODY_BYTES = 1024
"""Nothing here takes a body."""


class Relay:
    """``draw`` gives 32 random bytes in hex; ``relay_id`` outlives restarts, ``boot`` does not."""

    def __init__(
        self,
        config: RelayConfig,
        relay_id: str,
        boot: str,
        now: Callable[[], float],
        wall: Callable[[], float],
        draw: Callable[[], str],
        keys: Callable[[], KeyRing] = KeyRing,
    ) -> None:
        self.config = config
        self.seats = Seats(config, now)
        self.desk = Desk(config, relay_id, self.seats, now, wall, draw)
        self.splice_port = 0
        self._relay_id = relay_id
        self._boot = boot
        self._draw = draw
        self._now = now
        self._guard = _guard(config, keys, now, wall)
        self._tasks = Tasks("relay")
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._site: Site | None = None

    @property
    def url(self) -> str:
        """Of the control port; empty before ``open``."""
        return self._site.url if self._site is not None else ""

    async def open(self, tls: ssl.SSLContext | None = None) -> Site:
        """Listen on both ports. Raises StartError naming the address."""
        config = self.config
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: End(self.desk), config.host, config.splice_port
            )
        except OSError as error:
            raise StartError(f"Cannot listen on {config.host}:{config.splice_port}: {error.strerror}.") from None
        self.splice_port = self._server.sockets[0].getsockname()[1]
        try:
            app = make_app(self.routes(), MAX_BODY_BYTES)
            app.middlewares.append(guarding(self._guard))
            self._site = await serve(app, config.host, config.port, tls, self._guard.lets_in)
        except StartError:
            self._server.close()
            raise
        self._tasks.start(every(self._round, lambda: ROUND_S, "round"), "round")
        return self._site

    async def stop(self) -> None:
        """Tell the nodes when to come back, then end every connection."""
        self._stopping = True
        for seat in self.seats:
            try:
                seat.tell(Leaving(back_in_s=BACK_IN_S, spread_s=BACK_SPREAD_S))
            except Overloaded:
                log.info("node does not hear that we stop seat=%s", seat.wallet)
            seat.ended.set()
        if self._server is not None:
            self._server.close()
        if self._site is not None:
            await self._site.close()
        self.desk.close()
        await self._tasks.close()

    async def _round(self) -> None:
        self.desk.tick()
        self.seats.forget_swaps()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(CONTROL, self._control, allow_head=False),
            web.get(RELAYS, self._seats, allow_head=False),
            web.get(api.HEALTH, self._health, allow_head=False),
            web.get(api.METRICS, self._metrics, allow_head=False),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return json_response(Health("ok", meshnet.__version__))

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=render(self.seats, self.desk), headers={"Content-Type": CONTENT_TYPE})

    async def _seats(self, request: web.Request) -> web.Response:
        now = self._now()
        return json_response([_row(seat, now) for seat in self.seats])

    async def _control(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=MAX_CONTROL_BYTES, heartbeat=PING_S, timeout=1.0)
        await socket.prepare(request)
        seat: Seat | None = None
        try:
            seat = await self._admit(socket, request.remote or "")
            await self._converse(socket, seat)
        except MeshnetError as error:
            self.desk.refused[error.code] += 1
            log.warning("seat refused address=%s code=%s reason=%s", request.remote, error.code, error.message)
            await _say(socket, Refused(code=error.code[:64], message=error.message[:512]))
        except TimeoutError:
            log.info("control connection silent address=%s", request.remote)
        finally:
            if seat is not None:
                self.seats.leave(seat)
                log.info("seat left wallet=%s", seat.wallet)
        await socket.close()
        return socket

    async def _admit(self, socket: web.WebSocketResponse, address: str) -> Seat:
        if self._stopping:
            raise Overloaded("This relay stops.")
        challenge = Challenge(relay_id=self._relay_id, boot=self._boot, nonce=self._draw())
        await _say(socket, challenge)
        async with asyncio.timeout(self.config.handshake_s):
            message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise FrameError("the control connection ended before its proof")
        seat = self.seats.sit(challenge, decode(message.data, Prove), address)
        log.info("seat taken wallet=%s name=%s address=%s", seat.wallet, seat.name, address)
        await _say(socket, Welcome(splice_port=self.splice_port))
        return seat

    async def _converse(self, socket: web.WebSocketResponse, seat: Seat) -> None:
        """Until the node goes, is replaced, or we stop: tell it what waits in its queue. It has nothing to tell us."""
        tasks = Tasks(f"seat.{seat.wallet}")
        try:
            ends = [
                tasks.start(_tell(socket, seat), "tell", quiet=True),
                tasks.start(_listen(socket), "listen", quiet=True),
                tasks.start(seat.ended.wait(), "ended", quiet=True),
            ]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()
        while not seat.queue.empty():
            await _say(socket, seat.queue.get_nowait())


def _guard(
    config: RelayConfig, keys: Callable[[], KeyRing], now: Callable[[], float], wall: Callable[[], float]
) -> Guard:
    """On loopback the operator's own; beyond it a key for figures, and a proof for a seat."""
    is_local = config.host in LOOPBACK
    return Guard(
        "local" if is_local else "exposed",
        access.RELAY,
        keys,
        now,
        wall,
        names=guarded_names(config.host) if is_local else None,
    )


async def _tell(socket: web.WebSocketResponse, seat: Seat) -> None:
    while True:
        await _say(socket, await seat.queue.get())


async def _listen(socket: web.WebSocketResponse) -> None:
    while (await socket.receive()).type in (WSMsgType.PING, WSMsgType.PONG):
        pass


async def _say(socket: web.WebSocketResponse, message: Struct) -> None:
    try:
        async with asyncio.timeout(WRITE_S):
            await socket.send_str(encode(message).decode())
    except (ConnectionError, RuntimeError):
        log.info("control connection gone before %s", type(message).__name__)


def _row(seat: Seat, now: float) -> SeatMessage:
    since_s = round(now - seat.since, 1)
    return SeatMessage(seat.wallet, seat.name, seat.address, since_s, seat.splices, seat.bytes_carried)
