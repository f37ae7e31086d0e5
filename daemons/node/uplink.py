"""A node's way in when nobody can dial it: it sits at relays, and dials out once more for each link it is wanted for.

One ``Uplink`` a relay. Its relay's death is not its end: it comes back with full jitter, or when the relay said so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container
from random import Random
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import WSMsgType
from yarl import URL

from daemons.kit.identity import WalletKey
from daemons.kit.splice import accept_spliced, take
from daemons.kit.tasks import Tasks
from daemons.kit.tls import encode_certificate, open_certificate
from meshnet.domain.errors import Forbidden, FrameError, MeshnetError, Unreachable
from meshnet.domain.ids import Wallet
from meshnet.domain.tickets import check_link
from meshnet.wire.relay import (
    CONTROL,
    MAX_CONTROL_BYTES,
    Challenge,
    Leaving,
    Prove,
    Refused,
    RelayAddress,
    ToNode,
    Wanted,
    Welcome,
    decode,
    encode,
    seat_proof,
)
from meshnet.wire.tickets import open_ticket

M = TypeVar("M", bound=msgspec.Struct)

log = logging.getLogger(__name__)

HELLO_S = 5.0
"""Connect, challenge, proof, welcome: four one-way trips and two TLS handshakes round the world are 2 s."""
PING_S = 15.0
"""A dead relay is known within 1.5 of these."""
FIRST_BACK_OFF_S = 0.5
MAX_BACK_OFF_S = 30.0
"""Nodes are back within 30 s of their relay's return; with full jitter 50 of them come over that time, not at once."""
STEADY_S = 60.0
"""A seat held for this long was a good one: the next try begins again at FIRST_BACK_OFF_S."""
UNWELCOME_S = 60.0
"""After a refusal that another try will not mend (another process has our wallet, no room)."""
MAX_TAKING = 16
"""Links being opened at once: more than a mesh asks of one node in HANDSHAKE_S, few enough to bound a bad relay."""


class Uplink:
    """Keeps a seat at one relay. ``server`` makes the protocol of our own HTTP server (``runner.server``)."""

    def __init__(
        self,
        relay_url: str,
        key: WalletKey,
        name: str,
        trackers: Callable[[], Container[Wallet]],
        server: Callable[[], asyncio.BaseProtocol],
        http: aiohttp.ClientSession,
        rng: Random,
        now: Callable[[], float],
        wall: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``relay_url``: ws://, wss://, http:// or https:// of its control port. ``trackers``: whose tickets let in.
        ``on_change`` hears of every seat taken and lost."""
        self.url = URL(relay_url)
        self.address: RelayAddress | None = None
        """Where we can be reached through this relay; None while we cannot."""
        self._key = key
        self._name = name
        self._trackers = trackers
        self._server = server
        self._http = http
        self._rng = rng
        self._now = now
        self._wall = wall
        self._sleep = sleep
        self._on_change = on_change
        self._tries = 0
        self._tasks = Tasks(f"uplink.{self.url.host}")

    async def run(self) -> None:
        """Forever: sit, and when that ends, wait and come back."""
        while True:
            await self._sleep(await self.sit())

    async def sit(self) -> float:
        """One seat from its taking to its end; returns how many seconds to stay away. Never raises on a bad relay."""
        began = self._now()
        wait_s: float | None = None
        try:
            wait_s = await self._session()
        except Forbidden as error:
            log.warning("relay refuses url=%s code=%s reason=%s", self.url, error.code, error.message)
            wait_s = UNWELCOME_S
        except (MeshnetError, aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("relay lost url=%s reason=%s", self.url, error or type(error).__name__)
        finally:
            self.address = None
            self._on_change()
        if self._now() - began > STEADY_S:
            self._tries = 0
        return self.back_off() if wait_s is None else wait_s

    def back_off(self) -> float:
        """Full jitter: uniform in 0 … min(30, 0.5·2ⁿ) s for the n-th try, so that a crowd spreads out."""
        ceiling = min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return self._rng.uniform(0.0, ceiling)

    async def close(self) -> None:
        await self._tasks.close()

    async def _session(self) -> float | None:
        async with asyncio.timeout(HELLO_S):
            socket = await self._http.ws_connect(
                self.url.join(URL(CONTROL)), heartbeat=PING_S, max_msg_size=MAX_CONTROL_BYTES, compress=0
            )
        try:
            async with asyncio.timeout(HELLO_S):
                welcome = await self._prove(socket)
            host = self.url.host or ""
            self.address = RelayAddress(host, welcome.splice_port, self._key.wallet)
            log.info("seat taken relay=%s address=%s", self.url, self.address.url)
            self._on_change()
            return await self._serve(socket, host, welcome.splice_port)
        finally:
            await socket.close()

    async def _prove(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome:
        challenge = _expect(await socket.receive(), Challenge)
        prove = Prove(
            public_key=self._key.public_key.hex(),
            certificate=encode_certificate(self._key.certificate),
            proof=self._key.private.sign(seat_proof(challenge, self._key.public_key)).hex(),
            name=self._name,
        )
        await socket.send_str(encode(prove).decode())
        return _expect(await socket.receive(), Welcome)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse, host: str, port: int) -> float | None:
        """Until the relay goes; the seconds to stay away when it said so."""
        while True:
            message = await socket.receive()
            if message.type is not WSMsgType.TEXT:
                return None
            match decode(message.data, ToNode):  # type: ignore[arg-type]
                case Wanted() as wanted:
                    if len(self._tasks) < MAX_TAKING:
                        self._tasks.start(self._answer(host, port, wanted), "link")
                case Leaving() as leaving:
                    return leaving.back_in_s + self._rng.uniform(0.0, leaving.spread_s)
                case Refused() as refused:
                    raise Forbidden(refused.message, code=refused.code)
                case other:
                    raise FrameError(f"the relay sent {type(other).__name__} out of turn")

    async def _answer(self, host: str, port: int, wanted: Wanted) -> None:
        """Check who wants us, by ourselves; dial out; hand the socket to our server."""
        try:
            certificate = self._check(wanted)
            sock = await take(host, port, wanted.token)
            await accept_spliced(self._server, sock, self._key, certificate)
        except (Forbidden, Unreachable) as error:
            log.warning("relayed link refused relay=%s code=%s reason=%s", self.url, error.code, error.message)

    def _check(self, wanted: Wanted) -> bytes:
        caller, certificate = open_certificate(wanted.certificate)
        check_link(open_ticket(wanted.ticket, self._trackers()), caller, self._key.wallet, self._wall())
        return certificate


def _expect(message: aiohttp.WSMessage, kind: type[M]) -> M:
    """Raises Forbidden when the relay refuses us, FrameError when it says anything else."""
    if message.type is not WSMsgType.TEXT:
        raise FrameError(f"the relay closed the connection before {kind.__name__}")
    got = decode(message.data, ToNode)  # type: ignore[arg-type]
    if isinstance(got, Refused):
        raise Forbidden(got.message, code=got.code)
    if not isinstance(got, kind):
        raise FrameError(f"the relay sent {type(got).__name__} instead of {kind.__name__}")
    return got
