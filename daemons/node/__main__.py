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
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import BinaryIO, NoReturn

import aiohttp

from daemons.kit import config, host, logs
from daemons.kit.run import Stop, run, write_run_file
from daemons.kit.web import Site, serve
from daemons.node.announce import Advertised, Announcer
from daemons.node.app import node_app, status_of
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.settings import NodeSettings
from daemons.node.slowed import SlowedEngine
from daemons.node.speed import read_speed, save_speed, speed_key
from daemons.node.wallet import WalletKey, open_wallet
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.engine import EngineSpeed, ShardEngine, TextCodec
from meshnet.domain.errors import InvalidRequest, MeshnetError, StartError
from meshnet.domain.ids import make_node_id
from meshnet.domain.shards import Shard
from meshnet.weights.places import HOME_VARIABLE, state_root, store_root
from meshnet.weights.store import Store, StoredModel
from meshnet.wire import api
from meshnet.wire.messages import NodeStatus

log = logging.getLogger("daemons.node")  # As a program, __name__ is no logger of ours.

BOOT_BYTES = 12
"""Of the random boot id: 96 bits never meet twice."""
SWITCH_INTERVAL_S = 0.0005
"""How long the computing thread may keep the interpreter from the event loop. Python's 5 ms would be most of a hop;
half a millisecond costs nothing measurable, since torch lets go of the interpreter in every operation."""


STEADY_SPREAD = 0.5
"""A measurement that varied more was taken on a busy machine: it is used, but not remembered for the next start."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a start needs, checked."""

    settings: NodeSettings
    shard: Shard
    folder: Path
    wallet: WalletKey
    store: Store
    model: StoredModel

    def holding(self) -> Holding:
        manifest = self.model.manifest
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
    """Bytes of weights read so far; the worker's thread counts, anyone looks."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

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
    return run(lambda stop: serve_until(stop, settings))


def read_settings(argv: list[str]) -> NodeSettings:
    """Defaults < --config < MESHNET_* < flags. Raises StartError."""
    flags = vars(_parser().parse_args(argv))
    toml = flags.pop("config")
    return config.load(NodeSettings, "node", toml, os.environ, flags)


async def serve_until(stop: Stop, settings: NodeSettings) -> None:
    """A node's life: listening at once, registered as loading, ready when loaded and measured, gone within 5 s."""
    plan = make_plan(settings)
    progress = Progress(plan.model.shard_bytes(plan.shard))
    async with _running(plan, progress) as (node, site, announcer):
        node.tasks.start(announcer.run(), "announce")
        loading = node.tasks.start(_load(node, plan, progress, announcer), "load", quiet=True)
        stopping = node.tasks.start(stop.wait(), "stop")
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading  # Raises what loading raised.
            log.info("node ready node=%s url=%s", node.identity.node_id, site.url)
        await stopping
        await announcer.leave()
        await node.drain()
    log.info("stopped node=%s", node.identity.node_id)


def make_plan(settings: NodeSettings) -> Plan:
    """Everything that can be wrong before anything starts. Raises StartError."""
    shard = settings.checked_shard()
    if importlib.util.find_spec("torch") is None:
        raise StartError("A node needs torch, which is not installed. Run: pip install 'meshnet-llm[node]'")
    folder = state_root(os.environ) / "nodes" / settings.name
    store = Store(store_root(os.environ))
    model = store.open(settings.model)
    try:
        missing = model.missing(shard)
    except InvalidRequest as error:
        raise StartError(error.message) from None
    if missing:
        names = ", ".join(entry.name for entry in missing[:3])
        raise StartError(f"{settings.model} lacks {len(missing)} files for layers {shard}: {names}. Pull it again.")
    return Plan(settings, shard, folder, open_wallet(folder), store, model)


@contextlib.asynccontextmanager
async def _running(plan: Plan, progress: Progress) -> AsyncIterator[tuple[Node, Site, Announcer]]:
    settings = plan.settings
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        client = await stack.enter_async_context(open_http())
        node = Node(Identity(plan.holding()), http)
        announcers: list[Announcer] = []

        def status() -> NodeStatus:
            registered = any(announcer.registered for announcer in announcers)
            return status_of(node, settings.name, (progress.done, progress.total), (settings.tracker,), registered)

        site = await serve(node_app(node, settings.name, status), settings.host, _port(settings))
        stack.push_async_callback(site.close)
        stack.push_async_callback(node.close)  # Before the site: links end first.
        url = settings.advertise_url or site.url
        advertised = Advertised(
            settings.name, url, host.hardware_profile(plan.folder), settings.kv_budget_bytes(), progress.total
        )
        rng = Random(plan.wallet.wallet + str(time.monotonic_ns()))
        tracker = TrackerClient(client, settings.tracker)
        announcers.append(Announcer(node, tracker, plan.wallet, advertised, lambda: progress.done, rng))
        stack.push_async_callback(announcers[0].leave)
        run_file = write_run_file(state_root(os.environ) / "run", "node", settings.name, site.url)
        stack.callback(run_file.unlink, missing_ok=True)
        yield node, site, announcers[0]


async def _load(node: Node, plan: Plan, progress: Progress, announcer: Announcer) -> None:
    started = time.monotonic()
    await node.load(lambda: make_engine(plan, progress))
    log.info("shard loaded layers=%s seconds=%.1f", plan.shard, time.monotonic() - started)
    settings = plan.settings
    key = speed_key(
        plan.model.manifest.revision, str(plan.shard), settings.dtype, settings.threads, settings.delay_per_layer_ms
    )
    speed = read_speed(plan.folder, key)
    if speed is None:
        speed = await node.worker.call(_measure)
        if speed.spread <= STEADY_SPREAD:
            save_speed(plan.folder, key, speed)
    log.info("measured decode_tps=%.1f batch8_tps=%.1f", speed.decode_tps, speed.decode_batch8_tps)
    node.ready = True
    announcer.measured(speed)


def _measure(engine: ShardEngine) -> EngineSpeed:
    return engine.measure()


def make_engine(plan: Plan, progress: Progress) -> tuple[ShardEngine, TextCodec | None]:
    """In the worker's thread: importing torch alone takes seconds."""
    try:
        from meshnet.engine.load import load_engine
    except ImportError as error:
        raise StartError(f"A node needs more packages ({error}). Run: pip install 'meshnet-llm[node]'") from None

    settings = plan.settings
    engine, codec = load_engine(
        plan.store,
        settings.model,
        plan.shard,
        dtype=settings.dtype,
        threads=settings.threads,
        kv_budget_bytes=settings.kv_budget_bytes(),
        opener=progress.open,
    )
    if settings.delay_per_layer_ms > 0:
        return SlowedEngine(engine, settings.delay_per_layer_ms / 1000), codec
    return engine, codec


def _port(settings: NodeSettings) -> int:
    if settings.port is not None:
        return settings.port
    return 0 if os.environ.get(HOME_VARIABLE, "").strip() else api.DEFAULT_NODE_PORT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemons.node", description="Holds layers of one model.")
    parser.add_argument("--config", type=Path, help="TOML file with a [node] table")
    for name in NodeSettings.__dataclass_fields__:
        if name not in ("port", "threads", "delay_per_layer_ms", "rebalance"):
            parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int)
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
