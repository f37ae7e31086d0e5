"""What a relay costs: round trips and bytes per second of a link through it against a direct one, and signing.

The relay is its own process; the two ends are this one's, aiohttp WebSockets with TLS pinned to wallets inside the
splice. Rounds alternate between direct and relayed, since the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket as sockets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web

from daemons.kit.dial import MeshConnector
from daemons.kit.identity import WalletKey, load_or_create
from daemons.kit.splice import reach, take
from daemons.kit.tasks import Tasks
from daemons.kit.tls import encode_certificate
from daemons.node.uplink import Uplink
from meshnet.bench.report import Spread, machine, spread
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet
from meshnet.domain.tickets import Ask, LinkTicket, RouteTicket, TicketHop, check_hop
from meshnet.wire import relay as wire
from meshnet.wire.signatures import sign_request, verify_request
from meshnet.wire.tickets import open_ticket, sign_ticket

FRAME_BYTES = 8 * 1024
"""One decode row of a model with hidden 4,096 in float16."""
CHUNK_BYTES = 64 * 1024
"""What a link cuts its messages to."""
BULK_MESSAGES = 2048
"""128 MiB a round."""
TRIPS = 400
WARM_UP = 50
START_S = 600.0
"""For the whole measurement: a relay that hangs ends it."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """A running relay's control URL, and where the node is reached through it."""

    control: str
    address: wire.RelayAddress


@dataclass(frozen=True, slots=True)
class Figures:
    """``*_ms`` are p50 of a round trip of FRAME_BYTES; ``*_mb_s`` one way, 10^6 bytes."""

    direct_ms: Spread
    relayed_ms: Spread
    added_ms: Spread
    """Relayed − direct of the same round."""
    direct_mb_s: Spread
    relayed_mb_s: Spread
    raw_mb_s: Spread
    """Through the relay without TLS and WebSocket: what the splice itself can do."""
    dial_ms: Spread
    """Ticket, relay, dial back, TLS, upgrade: once a link, never a token."""
    ticket_ms: float
    """What a route ticket adds to the time to first token, all hops together."""
    request_ms: float
    """A signed heartbeat, both ends."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = asyncio.run(measure(options.rounds))
    if options.json:
        print(json.dumps({"machine": machine(), "figures": asdict(figures)}))
        return 0
    print(f"round trip of {FRAME_BYTES} B, p50   direct {figures.direct_ms} ms, relayed {figures.relayed_ms} ms")
    print(f"added by the relay, p50      {figures.added_ms} ms (goal: at most 0.5 ms)")
    print(
        f"one way, WebSocket           direct {figures.direct_mb_s} MB/s, relayed with TLS {figures.relayed_mb_s} MB/s"
    )
    print(f"one way, the splice alone    {figures.raw_mb_s} MB/s (goal: at least 100 MB/s)")
    print(f"dialling a relayed link      {figures.dial_ms} ms")
    print(f"a route ticket of 4 hops     {figures.ticket_ms:.2f} ms before the first token (goal: at most 1 ms)")
    print(f"a signed heartbeat           {figures.request_ms:.2f} ms, both ends")
    print(" ".join(f"{name}={value}" for name, value in machine().items()))
    return 0


async def measure(rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        keys = {name: load_or_create(Path(folder) / f"{name}.key") for name in ("tracker", "node", "caller", "raw")}
        connector = MeshConnector(keys["caller"], lambda wallet: _ticket(keys, wallet), force_close=True)
        async with _node(keys, Path(folder)) as (direct, relayed), aiohttp.ClientSession(connector=connector) as http:
            trips: dict[str, list[float]] = {"direct": [], "relayed": []}
            rates: dict[str, list[float]] = {"direct": [], "relayed": []}
            raw: list[float] = []
            dials: list[float] = []
            for _ in range(rounds):
                for name, url in (("direct", direct), ("relayed", wire.dialled_url(relayed.address.url))):
                    began = time.perf_counter()
                    async with http.ws_connect(url + "/v1/link", compress=0, max_msg_size=1 << 20) as socket:
                        if name == "relayed":
                            dials.append((time.perf_counter() - began) * 1e3)
                        trips[name].append(await _round_trip_ms(socket))
                        rates[name].append(await _megabytes_per_second(socket))
                raw.append(await _raw_rate(http, keys, relayed))
    return Figures(
        spread(trips["direct"]),
        spread(trips["relayed"]),
        spread([b - a for a, b in zip(trips["direct"], trips["relayed"], strict=True)]),
        spread(rates["direct"]),
        spread(rates["relayed"]),
        spread(raw),
        spread(dials),
        ticket_ms(keys["tracker"]),
        request_ms(keys["node"]),
    )


def ticket_ms(tracker: WalletKey, times: int = 100) -> float:
    """CPU milliseconds of one route ticket of four hops: signed once, opened and checked by each hop."""
    now = time.time()
    hops = tuple(TicketHop(NodeId(f"{letter * 20}.{i}-{i}"), i, i) for i, letter in enumerate("abcd"))
    route = RouteTicket(tracker.wallet, CallId("call-1"), 0, ModelKey("m"), Revision("ab" * 32), hops, now + 60)
    asks = [Ask("call-1", 0, "m", "ab" * 32, i, i) for i in range(len(hops))]
    began = time.process_time()
    for _ in range(times):
        text = sign_ticket(tracker.private, route)
        for i, hop in enumerate(hops):
            ticket = open_ticket(text, {tracker.wallet})
            if isinstance(ticket, RouteTicket):
                check_hop(ticket, hop.node_id, Wallet(hops[i - 1].node_id[:20]), "previous", asks[i], now)
    return (time.process_time() - began) * 1e3 / times


def request_ms(node: WalletKey, times: int = 100) -> float:
    """CPU milliseconds of one signed request, both ends together: a heartbeat, never part of a call."""
    url, body, name, now = "http://127.0.0.1:7070/v1/nodes/x/heartbeat", b"{}" * 100, "tracker/boot", time.time()
    began = time.process_time()
    for _ in range(times):
        headers = sign_request(node.private, "POST", url, body, name, now=now, nonce="n" * 32)
        verify_request("POST", url, headers, body, name, now=now)
    return (time.process_time() - began) * 1e3 / times


async def _round_trip_ms(socket: aiohttp.ClientWebSocketResponse) -> float:
    frame, times = b"t" * FRAME_BYTES, []
    for _ in range(WARM_UP + TRIPS):
        began = time.perf_counter()
        await socket.send_bytes(frame)
        await socket.receive_bytes()
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times[WARM_UP:])[TRIPS // 2]


async def _megabytes_per_second(socket: aiohttp.ClientWebSocketResponse) -> float:
    """One way: the other end answers a single byte after the last message."""
    chunk = b"b" * CHUNK_BYTES
    began = time.perf_counter()
    for _ in range(BULK_MESSAGES):
        await socket.send_bytes(chunk)
    await socket.send_bytes(b"end")
    await socket.receive_bytes()
    return BULK_MESSAGES * CHUNK_BYTES / 1e6 / (time.perf_counter() - began)


async def _link(request: web.Request) -> web.WebSocketResponse:
    """Echoes frames, swallows bulk, answers its end."""
    socket = web.WebSocketResponse(compress=False, max_msg_size=1 << 20)
    await socket.prepare(request)
    async for message in socket:
        if not message.data.startswith(b"b"):
            await socket.send_bytes(message.data)
    return socket


async def _raw_rate(http: aiohttp.ClientSession, keys: dict[str, WalletKey], relay: Relayed) -> float:
    """Bytes into a splice whose other end a plain reader takes: the relay process alone is the limit."""
    loop = asyncio.get_running_loop()
    left = total = BULK_MESSAGES * CHUNK_BYTES
    async with _raw_pair(http, keys, relay) as (caller, node):
        chunk, into = b"r" * CHUNK_BYTES, bytearray(1 << 18)
        tasks = Tasks("bench")
        began = time.perf_counter()

        async def send() -> None:
            for _ in range(BULK_MESSAGES):
                await loop.sock_sendall(caller, chunk)

        tasks.start(send(), "send")
        while left > 0:
            left -= await loop.sock_recv_into(node, into)
        rate = total / 1e6 / (time.perf_counter() - began)
        await tasks.close()
        return rate


@contextlib.asynccontextmanager
async def _raw_pair(
    http: aiohttp.ClientSession, keys: dict[str, WalletKey], relay: Relayed
) -> AsyncIterator[tuple[sockets.socket, sockets.socket]]:
    """Both ends of a splice as plain sockets; the node's seat is taken by hand."""
    key = keys["raw"]
    async with http.ws_connect(relay.control + wire.CONTROL) as control:
        challenge = wire.decode(await control.receive_str(), wire.Challenge)
        prove = wire.Prove(
            public_key=key.public_key.hex(),
            certificate=encode_certificate(key.certificate),
            proof=key.private.sign(wire.seat_proof(challenge, key.public_key)).hex(),
        )
        await control.send_str(wire.encode(prove).decode())
        wire.decode(await control.receive_str(), wire.Welcome)
        address = wire.RelayAddress(relay.address.host, relay.address.port, key.wallet)

        async def answer() -> sockets.socket:
            wanted = wire.decode(await control.receive_str(), wire.Wanted)
            return await take(address.host, address.port, wanted.token)

        ticket = _ticket(keys, key.wallet)
        (caller, _), node = await asyncio.gather(reach(address, keys["caller"], ticket), answer())
        with caller, node:
            yield caller, node


def _ticket(keys: dict[str, WalletKey], target: Wallet) -> str:
    tracker = keys["tracker"]
    return sign_ticket(tracker.private, LinkTicket(tracker.wallet, keys["caller"].wallet, target, time.time() + 60.0))


@contextlib.asynccontextmanager
async def _relay(keys: dict[str, WalletKey], folder: Path) -> AsyncIterator[str]:
    """A relay process; gives the URL of its control port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "daemons.relay", "--port", "0", "--splice-port", "0"),
        *("--trackers", keys["tracker"].wallet, "--log-level", "WARNING"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MESHNET_HOME": str(folder / "home")},
    )
    if process.stdout is None:
        raise RuntimeError("no output of the relay")
    try:
        async with asyncio.timeout(START_S):
            yield (await process.stdout.readline()).decode().split()[4]
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _node(keys: dict[str, WalletKey], folder: Path) -> AsyncIterator[tuple[str, Relayed]]:
    """A server reached directly by its port, and through the relay by its uplink."""
    app = web.Application()
    app.router.add_get("/v1/link", _link)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    tasks, server = Tasks("node"), runner.server
    if server is None:
        raise RuntimeError("no server after setup")
    async with _relay(keys, folder) as control, aiohttp.ClientSession() as http:
        uplink = Uplink(
            *(control, keys["node"], "bench", lambda: {keys["tracker"].wallet}, server, http),
            *(Random(), time.monotonic, time.time),
        )
        tasks.start(uplink.run(), "uplink")
        while uplink.address is None:  # noqa: ASYNC110 (a moment, at the start of a measurement)
            await asyncio.sleep(0.01)
        try:
            yield f"http://{host}:{port}", Relayed(control, uplink.address)
        finally:
            await tasks.close()
            await uplink.close()
            await runner.cleanup()
