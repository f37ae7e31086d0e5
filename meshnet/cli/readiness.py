"""Waiting for daemons that were just started: what each is doing, until all are ready, dead or out of time.

Asks the daemons themselves and draws nothing: whoever waits is told of every look.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshnet.cli import processes
from meshnet.cli.connect import open_client
from meshnet.cli.home import Home
from meshnet.cli.launch import DaemonSpec, Started
from meshnet.cli.terminal import format_bytes
from meshnet.client.node import NodeClient
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import DeadlineExceeded, MeshnetError, NotFound, Unreachable
from meshnet.wire.messages import NodeStatus

LOOK_EVERY_S = 0.25
"""Often enough to feel live; a look is one loopback request per daemon (about 2 ms)."""
LOG_TAIL_LINES = 8
SEARCHED_LINES = 1000
"""A start writes some 20 lines; a thousand are more than the 64 KiB that are read."""
NO_KEY = ("unauthorized", "wrong_scope")
"""Codes of a node that shows its status to holders of a key only."""
_STAMP = re.compile(r"\S+Z [A-Z]+ \S+ ")
"""What a log's line begins with: time, level, logger."""

Phase = Literal["starting", "loading", "joining", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Watched:
    """A daemon that must become ready. ``started`` is None for one that ran before."""

    spec: DaemonSpec
    started: Started | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at one daemon saw."""

    name: str
    phase: Phase
    url: str = ""
    detail: str = ""

    @property
    def is_final(self) -> bool:
        return self.phase in ("ready", "failed")


Tell = Callable[[Sequence[Sight]], None]
Door = Callable[[str], tuple[TrackerClient, NodeClient]]
"""Both clients of an address: a relay answers the tracker's health path too."""


async def wait_until_ready(home: Home, watched: Sequence[Watched], timeout_s: float, tell: Tell) -> list[Sight]:
    """Look until every daemon is ready or failed, or ``timeout_s`` has passed; the last look is returned."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    done: dict[str, Sight] = {}
    async with open_client(os.environ) as http:

        def door(url: str) -> tuple[TrackerClient, NodeClient]:
            return TrackerClient(http, url), NodeClient(http, url)

        while True:
            for daemon in watched:
                if daemon.spec.name not in done or not done[daemon.spec.name].is_final:
                    done[daemon.spec.name] = await _look(door, home, daemon)
            sights = [done[daemon.spec.name] for daemon in watched]
            tell(sights)
            if all(sight.is_final for sight in sights) or loop.time() >= deadline:
                return sights
            await asyncio.sleep(LOOK_EVERY_S)


async def wait_until_covered(url: str, model_key: str, timeout_s: float) -> str:
    """Wait until the tracker says that every layer of the model is held. Returns "" or what is still missing."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    async with open_client(os.environ) as http:
        tracker = TrackerClient(http, url)
        while True:
            missing = await _missing(tracker, model_key)
            if not missing or loop.time() >= deadline:
                return missing
            await asyncio.sleep(LOOK_EVERY_S)


def log_tail(log: Path, offset: int = 0, lines: int = LOG_TAIL_LINES) -> list[str]:
    """The last lines a daemon wrote since ``offset``."""
    try:
        with log.open("rb") as stream:
            end = stream.seek(0, 2)
            stream.seek(max(offset, end - 64 * 1024) if end >= offset else 0)
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


async def _look(door: Door, home: Home, daemon: Watched) -> Sight:
    """One daemon, now."""
    name = daemon.spec.name
    if daemon.started is not None and daemon.started.process.poll() is not None:
        return Sight(name, "failed", detail=f"ended with exit code {daemon.started.process.returncode}")
    record = home.record(name)
    if record is None or not record.url:
        return Sight(name, "starting", detail="starting the process")
    if daemon.started is None and not processes.is_running(record):
        return Sight(name, "failed", record.url, "died")
    try:
        tracker, node = door(record.url)
        if daemon.spec.kind == "node":
            return await _look_at_node(node, daemon, record.url)
        await tracker.health()
    except (Unreachable, DeadlineExceeded):
        return Sight(name, "starting", record.url, "not answering yet")
    except MeshnetError as error:
        return Sight(name, "starting", record.url, error.message)
    return Sight(name, "ready", record.url)


async def _look_at_node(node: NodeClient, daemon: Watched, url: str) -> Sight:
    try:
        return _sight_of(daemon.spec.name, url, await node.status())
    except MeshnetError as error:
        if error.code not in NO_KEY:
            raise
    return await _look_from_outside(node, daemon, url)


async def _look_from_outside(node: NodeClient, daemon: Watched, url: str) -> Sight:
    """A node that does not tell us its status, since we have no key to read: what its health and its log say."""
    name, seen = daemon.spec.name, "its status needs a key of scope read in MESHNET_API_KEY"
    state = (await node.health()).status
    if daemon.started is None:
        return Sight(name, "ready" if state == "ready" else "loading", url, f"{state}; {seen}")
    lines = log_tail(daemon.started.log, daemon.started.log_offset, SEARCHED_LINES)
    if state == "ready" and any(" registered node=" in line for line in lines):
        return Sight(name, "ready", url, seen)
    said = _STAMP.sub("", lines[-1], count=1) if lines else state
    return Sight(name, "joining" if state == "ready" else "loading", url, said)


def _sight_of(name: str, url: str, status: NodeStatus) -> Sight:
    layers = f"layers {status.shard_start}-{status.shard_end}"
    if status.state == "loading":
        total, done = status.loading_total_bytes, status.loading_done_bytes
        if not total:
            return Sight(name, "loading", url, f"loading {layers}")
        if done >= total:
            return Sight(name, "loading", url, f"measuring {layers}")
        return Sight(name, "loading", url, f"loading {layers}: {done * 100 // total} % of {format_bytes(total)}")
    if not status.registered:
        return Sight(name, "joining", url, "registering at the tracker")
    return Sight(name, "ready", url, f"{layers} of {status.model_key}")


async def _missing(tracker: TrackerClient, model_key: str) -> str:
    try:
        model = await tracker.model(model_key)
        if model.ready:
            return ""
        coverage = await tracker.coverage(model_key)
    except NotFound:
        return f"no node serves {model_key}"
    except (Unreachable, DeadlineExceeded) as error:
        return error.message
    gaps = [gap for covered in coverage.models if covered.model_key == model_key for gap in covered.gaps]
    return f"layers {', '.join(gaps)} of {model_key} are held by no ready node" if gaps else f"{model_key} is not ready"
