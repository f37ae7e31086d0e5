"""``python -m daemons.node``: settings, wallet, clocks and dice are made here; the only file that knows the engine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import io
import logging
import os
import secrets
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NoReturn
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from daemons.kit import config, host, logs
from daemons.kit.clock import SteadyClock, seconds_since_boot, wall_clock
from daemons.kit.dial import MeshConnector
from daemons.kit.files import FileServer
from daemons.kit.guard import Guard, guarded_names
from daemons.kit.keyfile import KeyFile
from daemons.kit.peerfiles import PeerFiles
from daemons.kit.proof import Prover
from daemons.kit.run import Stop, run, write_run_file
from daemons.kit.signing import RequestSigner
from daemons.kit.tls import own_server
from daemons.kit.web import Site, serve, serve_also
from daemons.node.announce import Advertised, Announcer
from daemons.node.app import node_app, status_of
from daemons.node.failpoints import FailingEngine, fail_point_of
from daemons.node.identity import Holding, Identity
from daemons.node.joining import Joiner, Work
from daemons.node.measuring import Benchmark
from daemons.node.service import Node
from daemons.node.settings import NodeSettings, is_loopback
from daemons.node.slowed import SlowedEngine
from daemons.node.speed import speed_key
from daemons.node.trust import Trust
from daemons.node.uplinks import Address, Means, Uplinks
from daemons.node.wallet import WalletKey, open_wallet
from meshnet.client.files import FilesClient
from meshnet.client.http import Client, Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.engine import EngineSpeed, ShardEngine, TextCodec
from meshnet.domain.errors import MeshnetError, StartError
from meshnet.domain.ids import make_node_id
from meshnet.domain.nodes import Accelerator
from meshnet.domain.shards import Shard
from meshnet.weights.fetch import FileSource, fetch_shard
from meshnet.weights.places import HOME_VARIABLE, state_root, store_root
from meshnet.weights.store import Store
from meshnet.wire import access, api
from meshnet.wire.keyfile import KEY_FILE
from meshnet.wire.messages import MoveAdvice, NodeStatus, RegisterResponse
from meshnet.wire.relay import RelayAddress

log = logging.getLogger("daemons.node")  # As a program, __name__ is no logger of ours.

BOOT_BYTES = 12
"""Of the random boot id: 96 bits never meet twice."""
SWITCH_INTERVAL_S = 0.0005
"""How long the computing thread may keep the interpreter from the event loop. Python's 5 ms would be most of a hop;
half a millisecond costs nothing measurable, since torch lets go of the interpreter in every operation."""


MOVE_DRAIN_S = 120.0
"""A move waits so long for running sessions; what still runs then is given up and goes on elsewhere."""
HUGE_PAGES = ("THP_MEM_ALLOC_ENABLE", "1")
"""Read by torch as it is imported: weights lie in 2 MiB pages where the system allows it. When a process is killed, its
memory is freed before its sockets close: in 4 KiB pages at 0.1 s a gigabyte, which its neighbours wait in the dark; in
large ones at a tenth of that."""


@dataclass(frozen=True, slots=True)
class Peers:
    """How others are reached, what they are trusted with, and the time that is compared with theirs."""

    trust: Trust
    http: aiohttp.ClientSession
    wall: SteadyClock
    """Unix seconds, for all that is compared with others' clocks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a start needs, checked."""

    settings: NodeSettings
    work: Work
    folder: Path
    wallet: WalletKey
    store: Store
    tracker: TrackerClient
    peers: Peers

    @property
    def shard(self) -> Shard:
        return self.work.shard

    def holding(self) -> Holding:
        manifest = self.work.model.manifest
        return Holding(
            make_node_id(self.wallet.wallet, self.shard),
            secrets.token_hex(BOOT_BYTES),
            manifest.model_key,
            manifest.revision,
            self.shard,
            manifest.n_layers,
            manifest.hidden_size,
            manifest.context_length,
            self.settings.dtype,
        )


class Progress:
    """Bytes of weights fetched and read so far; the worker's thread counts, anyone looks."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def add(self, count: int) -> None:
        self.done += count

    def open(self, path: Path) -> BinaryIO:
        return _CountedFile(path, self)


class _CountedFile(io.FileIO):
    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] (typeshed's Buffer)
        count = super().readinto(buffer)
        self._progress.done += count or 0
        return count


def main(argv: list[str] | None = None) -> int:
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv)
    except MeshnetError as error:
        print(error.message, file=sys.stderr)
        return 1
    logs.configure(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.environ.setdefault(*HUGE_PAGES)
    return run(lambda stop: serve_until(stop, settings))


def read_settings(argv: list[str]) -> NodeSettings:
    """Defaults < --config < MESHNET_* < flags. Raises StartError."""
    flags = vars(_parser().parse_args(argv))
    toml = flags.pop("config")
    return config.load(NodeSettings, "node", toml, os.environ, flags)


async def serve_until(stop: Stop, settings: NodeSettings) -> None:
    """A node's life: its layers known, listening, registered as loading before it fetches and loads, ready
    when measured, gone within 5 s. Moving to other layers is another process in the same place."""
    wallet = open_wallet(state_root(os.environ) / "nodes" / settings.name)
    wall = SteadyClock(wall_clock(os.environ), seconds_since_boot)
    trust = Trust(wall, required=settings.profile != "local")
    connector = MeshConnector(wallet, trust.ticket_for, settings.check_address, limit=0)
    async with (
        open_http(ca_file=settings.ca_file) as client,
        aiohttp.ClientSession(connector=connector, trust_env=False) as http,
    ):
        plan = await make_plan(settings, client, wallet, Peers(trust, http, wall))
        missing = sum(entry.size_bytes for entry in plan.work.model.missing(plan.shard))
        progress = Progress(plan.work.model.shard_bytes(plan.shard) + missing)
        moves: asyncio.Queue[MoveAdvice] = asyncio.Queue()
        async with _running(plan, progress, moves) as (node, site, announcer):
            moved = await _live(stop, plan, progress, node, site, announcer, moves)
    log.info("stopped node=%s", node.identity.node_id)
    if moved is not None:
        move(settings, plan, moved)


async def _live(
    stop: Stop,
    plan: Plan,
    progress: Progress,
    node: Node,
    site: Site,
    announcer: Announcer,
    moves: asyncio.Queue[MoveAdvice],
) -> MoveAdvice | None:
    stopping = node.tasks.start(stop.wait(), "stop")
    # Asked once before the weights are read: a tracker that refuses this node ends it here, not after minutes.
    first = node.tasks.start(announcer.tick(), "register", quiet=True)
    await _first_of(first, stopping)
    announcing = node.tasks.start(announcer.run(), "announce", quiet=True)
    moving = node.tasks.start(moves.get(), "move")
    if first.done():
        loading = node.tasks.start(_load(node, plan, progress, announcer), "load", quiet=True)
        await _first_of(announcing, loading, stopping)
        if loading.done():
            log.info("node ready node=%s url=%s", node.identity.node_id, site.url)
            await _first_of(announcing, stopping, moving)
    advice = moving.result() if moving.done() and not stopping.done() else None
    if advice is not None:
        # Told as draining first, so that no new call comes; those that run may end.
        node.identity.draining = True
        announcer.wake()
        await _drained(node, stopping)
    await announcer.leave()
    await node.drain()
    return advice


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Until one of them is done. Raises what that one raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _drained(node: Node, stopping: asyncio.Task[None]) -> None:
    """Until no session is open, a stop is asked for, or MOVE_DRAIN_S have passed."""
    waiting = node.tasks.start(node.sessions.none_left.wait(), "drained")
    await asyncio.wait((waiting, stopping), timeout=MOVE_DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def move(settings: NodeSettings, plan: Plan, advice: MoveAdvice) -> NoReturn:
    """Become the node of the advised layers: the same process id, wallet and flags, the weights anew."""
    shard = str(Shard(advice.shard_start, advice.shard_end))
    log.info("moving model=%s to=%s why=%s", plan.work.model.manifest.model_key, shard, advice.why)
    words = [*sys.orig_argv, "--model", plan.work.model.manifest.model_key, "--shard", shard]
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words[1:]])


async def make_plan(settings: NodeSettings, client: Client, wallet: WalletKey, peers: Peers) -> Plan:
    """Everything that can be wrong before anything starts. Raises StartError."""
    settings.check()
    if importlib.util.find_spec("torch") is None:
        raise StartError("A node needs torch, which is not installed. Run: pip install 'meshnet-llm[node]'")
    folder = state_root(os.environ) / "nodes" / settings.name
    store = Store(store_root(os.environ))
    hardware = host.hardware_profile(folder)
    credentials = Credentials(
        settings.join_token, RequestSigner(wallet.private, peers.wall, draw_nonce, peers.wall.settle)
    )
    tracker = TrackerClient(client, settings.tracker, credentials)

    def dial(url: str) -> FileSource:
        """Only the tracker is shown what opens the mesh."""
        return (
            FilesClient(client, url, credentials)
            if url == tracker.url
            else PeerFiles(peers.http, url, peers.trust.ticket_for)
        )

    joiner = Joiner(settings, store, wallet.wallet, tracker, dial, hardware, peers.trust.keep_link)
    return Plan(settings, await joiner.find_work(), folder, wallet, store, tracker, peers)


def make_guard(plan: Plan) -> Guard:
    """Who may call this node over HTTP. Raises StartError for a key file that others can read."""
    settings, keys = plan.settings, KeyFile(state_root(os.environ) / KEY_FILE)
    advertised = urlsplit(settings.advertise_url).hostname or ""
    return Guard(
        settings.profile,
        access.NODE,
        keys,
        time.monotonic,
        plan.peers.wall,
        names=guarded_names(settings.host, advertised),
        wallet=plan.wallet.wallet,
        opens=lambda text: plan.peers.trust.opens(text, plan.wallet.wallet),
    )


@contextlib.asynccontextmanager
async def _running(
    plan: Plan, progress: Progress, moves: asyncio.Queue[MoveAdvice]
) -> AsyncIterator[tuple[Node, Site, Announcer]]:
    settings, work = plan.settings, plan.work
    async with contextlib.AsyncExitStack() as stack:
        trust, http = plan.peers.trust, plan.peers.http
        prover = Prover(
            plan.wallet,
            trust.trackers,
            time.monotonic,
            plan.peers.wall,
            draw_nonce,
            required=settings.profile != "local",
        )
        node = Node(Identity(plan.holding()), http, trust=trust, prover=prover)
        announcers: list[Announcer] = []

        def status() -> NodeStatus:
            registered = any(announcer.registered for announcer in announcers)
            return status_of(node, settings.name, (progress.done, progress.total), (settings.tracker,), registered)

        files = FileServer(plan.store, time.monotonic)
        guard = make_guard(plan)
        app = node_app(node, settings.name, status, files, guard)
        site, url = await _open_doors(plan, app, guard)
        stack.push_async_callback(site.close)
        stack.push_async_callback(node.close)  # Before the site: links end first.
        rng = Random(plan.wallet.wallet + str(time.monotonic_ns()))
        relays = await stack.enter_async_context(_relay_session(settings))
        uplinks = Uplinks(
            Means(plan.wallet, settings.name, trust.trackers, relays, rng, time.monotonic, plan.peers.wall),
            lambda: announcers[0].wake(),
        )
        stack.push_async_callback(uplinks.close)
        address = Address(url, uplinks, _protocol_of(site), settings.relays())
        advertised = Advertised(
            settings.name,
            url,
            host.hardware_profile(plan.folder),
            work.kv_budget_bytes,
            work.memory_budget_bytes,
            work.model.shard_bytes(work.shard),
            progress.total,
            settings.rebalance,
            not is_loopback(urlsplit(url).hostname or ""),
            settings.payout,
        )
        announcers.append(
            Announcer(
                node,
                plan.tracker,
                plan.wallet,
                advertised,
                lambda: progress.done,
                rng,
                moves.put_nowait,
                address.now,
                lambda answer: _on_registered(trust, address, answer),
                address.on_beat,
            )
        )
        stack.push_async_callback(announcers[0].leave)
        run_file = write_run_file(state_root(os.environ) / "run", "node", settings.name, site.url)
        stack.callback(run_file.unlink, missing_ok=True)
        yield node, site, announcers[0]


async def _open_doors(plan: Plan, app: web.Application, guard: Guard) -> tuple[Site, str]:
    """Listen, and say at which url others dial us. Under the profile exposed the operator's door is on loopback and
    the public one speaks TLS with our wallet's certificate."""
    settings = plan.settings
    if settings.profile != "exposed":
        site = await serve(app, settings.host, _port(settings), lets_in=guard.lets_in)
        return site, settings.advertise_url or site.url
    site = await serve(app, "127.0.0.1", 0, lets_in=guard.lets_in)
    port = await serve_also(site, settings.host, _port(settings), own_server(plan.wallet.tls_file))
    said = urlsplit(settings.advertise_url)
    return site, RelayAddress(said.hostname or settings.host, said.port or port, plan.wallet.wallet, "tls").url


def _relay_session(settings: NodeSettings) -> aiohttp.ClientSession:
    """Dials relays' control ports; a relay's certificate may be our own CA's."""
    tls = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else True
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), trust_env=False)


def _on_registered(trust: Trust, address: Address, answer: RegisterResponse) -> None:
    trust.take_tracker(answer.tracker_wallet)
    address.on_registered(answer)


def _protocol_of(site: Site) -> Callable[[], asyncio.BaseProtocol]:
    """Of our own HTTP server: what a spliced socket is handed to."""
    server = site.runner.server
    if server is None:
        raise StartError("The HTTP server does not run.")
    return server


def draw_nonce() -> str:
    return secrets.token_hex(16)


async def _load(node: Node, plan: Plan, progress: Progress, announcer: Announcer) -> None:
    started = time.monotonic()
    work = plan.work
    fetched = await fetch_shard(plan.store, work.model, work.shard, work.sources, progress.add)
    if fetched:
        log.info("weights fetched layers=%s bytes=%d seconds=%.1f", plan.shard, fetched, time.monotonic() - started)
    await node.load(lambda: make_engine(plan, progress))
    log.info("shard loaded layers=%s seconds=%.1f", plan.shard, time.monotonic() - started)
    benchmark = _benchmark(node, plan, announcer)
    await benchmark.at_start()
    node.ready = True
    announcer.wake()
    node.tasks.start(benchmark.keep(), "measure")


def _benchmark(node: Node, plan: Plan, announcer: Announcer) -> Benchmark:
    settings, revision = plan.settings, plan.work.model.manifest.revision

    async def tell(speed: EngineSpeed) -> None:
        announcer.measured(speed, await node.worker.call(_accelerators))

    return Benchmark(
        plan.folder,
        speed_key(revision, str(plan.shard), settings.dtype, settings.threads, settings.delay_per_layer_ms),
        lambda: node.worker.call(_measure),
        lambda: len(node.sessions) > 0 or node.identity.draining,
        tell,
    )


def _measure(engine: ShardEngine) -> EngineSpeed:
    return engine.measure()


def _accelerators(engine: ShardEngine) -> tuple[Accelerator, ...]:
    from meshnet.engine.probe import accelerators

    return accelerators()


def make_engine(plan: Plan, progress: Progress) -> tuple[ShardEngine, TextCodec | None]:
    """In the worker's thread: importing torch alone takes seconds."""
    try:
        from meshnet.engine.load import load_engine
    except ImportError as error:
        raise StartError(f"A node needs more packages ({error}). Run: pip install 'meshnet-llm[node]'") from None

    settings = plan.settings
    engine, codec = load_engine(
        plan.store,
        plan.work.model.manifest.model_key,
        plan.shard,
        dtype=settings.dtype,
        threads=settings.threads,
        kv_budget_bytes=plan.work.kv_budget_bytes,
        opener=progress.open,
    )
    if settings.delay_per_layer_ms > 0:
        engine = SlowedEngine(engine, settings.delay_per_layer_ms / 1000)
    if (point := fail_point_of(os.environ)) is not None:
        engine = FailingEngine(engine, point)
    return engine, codec


def _port(settings: NodeSettings) -> int:
    if settings.port is not None:
        return settings.port
    return 0 if os.environ.get(HOME_VARIABLE, "").strip() else api.DEFAULT_NODE_PORT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemons.node", description="Holds layers of one model.")
    parser.add_argument("--config", type=Path, help="TOML file with a [node] table")
    for name in NodeSettings.__dataclass_fields__:
        if name not in ("port", "threads", "delay_per_layer_ms", "rebalance", "sessions", "context"):
            parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--sessions", type=int, help="KV is kept ready for so many sessions")
    parser.add_argument("--context", type=int, help="of so many tokens each")
    parser.add_argument("--delay-per-layer-ms", type=float, help="for development: makes the node slower")
    parser.add_argument("--rebalance", action="store_true", default=None)
    return parser


def leave(code: int) -> NoReturn:
    """End without taking the interpreter apart: with torch loaded that takes seconds, and a stop is promised in 5."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
