"""A whole mesh in this process: the real tracker, real nodes with their leases, the fake engine, real sockets.

What a process would do at SIGKILL is ``kill``; signals proper are tests/failover/fleet.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from daemons.kit import host
from daemons.kit.signing import RequestSigner
from daemons.kit.web import Site, serve
from daemons.node.announce import Advertised, Announcer
from daemons.node.app import node_app, status_of
from daemons.node.deadlines import Deadlines
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.slowed import SlowedEngine
from daemons.node.wallet import open_wallet
from meshnet.client.http import Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import make_node_id
from meshnet.domain.shards import parse_shard
from tests.failover.fault_proxy import FaultProxy
from tests.mesh.fake_engine import FakeCodec, FakeEngine, facts
from tests.tracker.running import Running, run_tracker

WAIT_S = 30.0
LOOK_S = 0.01


@dataclass(slots=True)
class LiveNode:
    name: str
    node: Node
    engine: FakeEngine
    site: Site
    announcer: Announcer
    door: FaultProxy | None
    """Through which other daemons reach it, if it was given one."""
    way_out: FaultProxy | None
    """Through which it reaches the tracker."""

    @property
    def node_id(self) -> str:
        return self.node.identity.node_id


class LiveMesh:
    """Use ``open_live``."""

    def __init__(self, running: Running, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self.running = running
        self.client = running.client
        self.nodes: dict[str, LiveNode] = {}
        self._folder = folder
        self._stack = stack
        self._http: aiohttp.ClientSession

    async def add(
        self,
        name: str,
        shard: str,
        *,
        step_s: float = 0.0,
        kv_budget: int = 1 << 24,
        behind_proxy: bool = False,
        leash: bool = False,
    ) -> LiveNode:
        """A registered, ready node. ``behind_proxy``: reached through one; ``leash``: so it reaches the tracker."""
        stack, held, model = self._stack, parse_shard(shard), facts()
        wallet = open_wallet(self._folder / name)
        holding = Holding(
            make_node_id(wallet.wallet, held),
            secrets.token_hex(12),
            model.model_key,
            model.revision,
            held,
            model.n_layers,
            model.hidden_size,
            model.context_length,
            model.dtype,
        )
        http = await stack.enter_async_context(aiohttp.ClientSession())
        client = await stack.enter_async_context(open_http())
        node = Node(Identity(holding), http, Deadlines(drain_s=0.1))
        site = await serve(
            node_app(node, name, lambda: status_of(node, name, (0, 0), (self.running.url,), True)), "127.0.0.1", 0
        )
        stack.push_async_callback(site.close)
        stack.push_async_callback(node.close)
        engine = FakeEngine(held, kv_budget)
        slowed = SlowedEngine(engine, step_s / len(held)) if step_s else engine
        await node.load(lambda: (slowed, FakeCodec() if held.start == 0 else None))
        node.ready = True
        door = await stack.enter_async_context(FaultProxy(site.url)) if behind_proxy else None
        way_out = await stack.enter_async_context(FaultProxy(self.running.url)) if leash else None
        said = Advertised(
            name, door.url if door else site.url, host.hardware_profile(self._folder), kv_budget, 1 << 30, 0, 0
        )
        signer = RequestSigner(wallet.private, time.time, lambda: secrets.token_hex(16))
        tracker = TrackerClient(client, way_out.url if way_out else self.running.url, Credentials(signer=signer))
        announcer = Announcer(node, tracker, wallet, said, lambda: 0, Random(name))
        announcer.measured(slowed.measure())
        node.tasks.start(announcer.run(), "announce")
        live = self.nodes[name] = LiveNode(name, node, engine, site, announcer, door, way_out)
        await self.until(lambda: self.lease(live) is not None)
        return live

    def lease(self, live: LiveNode):
        return self.running.tracker.fleet.get(live.node_id)

    def suspects(self) -> list[str]:
        fleet = self.running.tracker.fleet
        leases = {name: self.lease(live) for name, live in self.nodes.items()}
        return [name for name, lease in leases.items() if lease is not None and fleet.is_suspect(lease.node)]

    async def until(self, true: Any, within_s: float = WAIT_S) -> None:
        """Look again and again: other threads and sockets decide."""
        async with asyncio.timeout(within_s):
            while not true():  # noqa: ASYNC110 (many things may make it true)
                await asyncio.sleep(LOOK_S)

    def is_free(self) -> bool:
        """No session, no KV, no answer in hand on any node; nothing reserved and no call on the tracker."""
        tracker = self.running.tracker
        nodes = [live.node for live in self.nodes.values()]
        return (
            not any(len(node.sessions) or node.worker.kv.sessions or len(node.driver) for node in nodes)
            and not tracker.wall.running
            and not len(tracker.attempts)
            and not self.running.in_flight
        )

    async def all_free(self, within_s: float = 5.0) -> None:
        await self.until(self.is_free, within_s)


@contextlib.asynccontextmanager
async def open_live(folder: Path, **settings: Any) -> AsyncIterator[LiveMesh]:
    """``settings`` of the tracker; its deadlines are the true ones unless said otherwise."""
    true = {"timeout_first_token": 15.0, "timeout_between_tokens": 2.0, "spare_wait": 3.0, "route_policy": "random"}
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(run_tracker(**{**true, **settings}))
        mesh = LiveMesh(running, folder, stack)
        try:
            yield mesh
        finally:
            for live in mesh.nodes.values():
                live.engine.gate.set()
                await live.announcer.leave()
