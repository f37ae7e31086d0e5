"""A relay, nodes behind it and callers, all in this process over real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.dial import MeshConnector
from daemons.kit.identity import WalletKey, make_wallet_key
from daemons.kit.tasks import Tasks
from daemons.kit.tls import peer_wallet
from daemons.node.uplink import Uplink
from daemons.relay.app import Relay
from daemons.relay.settings import RelayConfig
from meshnet.domain.ids import Wallet
from meshnet.domain.tickets import LinkTicket
from meshnet.wire.relay import RelayAddress
from meshnet.wire.tickets import sign_ticket

NOW = 1_800_000_000.0
"""Unix seconds of every test's wall clock."""


@dataclass
class Clock:
    """Monotonic and wall time that pass when told to."""

    seconds: float = 1000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return NOW + self.seconds - 1000.0


@dataclass
class Mesh:
    """Keys by name, and whatever was started."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    keys: dict[str, WalletKey] = field(default_factory=dict)

    def key(self, name: str) -> WalletKey:
        if name not in self.keys:
            seed = name.encode().ljust(32, b"\0")[:32]
            self.keys[name] = make_wallet_key(Ed25519PrivateKey.from_private_bytes(seed), self.folder / f"{name}.tls")
        return self.keys[name]

    def link_ticket(self, caller: str, target: str, *, by: str = "tracker", expires_in: float = 60.0) -> str:
        signer = self.key(by)
        ticket = LinkTicket(
            signer.wallet, self.key(caller).wallet, self.key(target).wallet, self.clock.wall() + expires_in
        )
        return sign_ticket(signer.private, ticket)

    @contextlib.asynccontextmanager
    async def relay(self, name: str = "relay", **settings: object) -> AsyncIterator[Relay]:
        config = replace(
            RelayConfig(port=0, splice_port=0, trackers=self.key("tracker").wallet),
            **settings,
        )
        relay = Relay(
            config, self.key(name).wallet, "boot" * 4, self.clock.now, self.clock.wall, lambda: secrets.token_hex(32)
        )
        await relay.open()
        try:
            yield relay
        finally:
            await relay.stop()

    @contextlib.asynccontextmanager
    async def node(
        self,
        name: str,
        *relays: Relay,
        routes: list[web.RouteDef] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[Node]:
        """A node that listens nowhere: its server gets sockets from its uplinks alone."""
        app = web.Application()
        seen: list[Wallet | None] = []
        app.add_routes(routes or [web.get("/v1/link", _echo), web.get("/whoami", _whoami(name, seen))])
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        tasks = Tasks(name)
        async with aiohttp.ClientSession() as http:
            uplinks = [self.uplink(name, relay.url, runner, http, sleep) for relay in relays]
            for uplink in uplinks:
                tasks.start(uplink.run(), "uplink")
            await asyncio.gather(*(until(lambda uplink=uplink: uplink.address is not None) for uplink in uplinks))
            try:
                yield Node(self.key(name), uplinks, runner, seen)
            finally:
                await tasks.close()
                for uplink in uplinks:
                    await uplink.close()
                await runner.cleanup()

    def uplink(
        self,
        name: str,
        relay_url: str,
        runner: web.AppRunner,
        http: aiohttp.ClientSession,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Uplink:
        return Uplink(
            relay_url,
            self.key(name),
            name,
            lambda: {self.key("tracker").wallet},
            runner.server,  # type: ignore[arg-type]
            http,
            Random(7),
            self.clock.now,
            self.clock.wall,
            sleep,
        )

    def session(self, caller: str, *, tickets: Callable[[Wallet], str | None] | None = None) -> aiohttp.ClientSession:
        """An HTTP client whose wallet is ``caller``, with a ticket for everybody unless told otherwise."""

        def for_anybody(wallet: Wallet) -> str | None:
            target = next(name for name, key in self.keys.items() if key.wallet == wallet)
            return self.link_ticket(caller, target)

        return aiohttp.ClientSession(connector=MeshConnector(self.key(caller), tickets or for_anybody))


@dataclass
class Node:
    key: WalletKey
    uplinks: list[Uplink]
    runner: web.AppRunner
    seen: list[Wallet | None]
    """Who called /whoami, by the certificate of its TLS."""

    def address(self, index: int = 0) -> RelayAddress:
        address = self.uplinks[index].address
        assert address is not None
        return address


async def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (what is waited for is spread over many objects)
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def tapped(port: int, carried: bytearray) -> AsyncIterator[int]:
    """A port that leads to ``port`` and writes down every byte of both ways."""
    tasks = Tasks("tap")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                carried.extend(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        tasks.start(pump(reader, inner_writer), "in")
        tasks.start(pump(inner_reader, writer), "out")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await tasks.close()


async def _echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(compress=False, max_msg_size=1 << 26)
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data)
    return socket


def _whoami(name: str, seen: list[Wallet | None]):
    async def handler(request: web.Request) -> web.Response:
        transport = request.transport
        seen.append(peer_wallet(transport.get_extra_info("ssl_object") if transport else None))
        return web.Response(text=name)

    return handler
