"""``python -m tests.failover.fake_node``: a real node process whose engine is the fake one. Starts without torch.

With ``--relay`` it is reached through relays alone, as a node behind a NAT.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import aiohttp

from daemons.kit import host, logs
from daemons.kit.clock import SteadyClock, wall_clock
from daemons.kit.dial import MeshConnector
from daemons.kit.guard import Guard
from daemons.kit.proof import Prover
from daemons.kit.run import Stop, run, write_run_file
from daemons.kit.signing import RequestSigner
from daemons.kit.web import serve
from daemons.node.announce import Advertised, Announcer
from daemons.node.app import node_app, status_of
from daemons.node.failpoints import FailingEngine, fail_point_of
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.slowed import SlowedEngine
from daemons.node.trust import Trust
from daemons.node.uplinks import Address, Means, Uplinks
from daemons.node.wallet import open_wallet
from daemons.node.wrapped import WrappedEngine
from meshnet.client.http import Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.engine import ShardEngine, StepItem, StepResult
from meshnet.domain.ids import make_node_id
from meshnet.domain.keys import KeyRing
from meshnet.domain.shards import parse_shard
from meshnet.wire import access
from tests.failover.witness import ENDING, WitnessingTrust
from tests.mesh.fake_engine import FakeCodec, FakeEngine, facts

KV_BUDGET = 1 << 24


class HungryEngine(WrappedEngine):
    """Takes so many bytes in each step, and gives them back: what a process may not have is a MemoryError."""

    def __init__(self, inner: ShardEngine, size_bytes: int) -> None:
        super().__init__(inner)
        self._size_bytes = size_bytes

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        room = bytes(self._size_bytes)  # As calloc has it: address space until somebody writes.
        results = super().step(items)
        del room
        return results


async def serve_until(stop: Stop, args: argparse.Namespace) -> None:
    home, shard, model = Path(os.environ["MESHNET_HOME"]), parse_shard(args.shard), facts()
    folder = home / "nodes" / args.name
    wallet = open_wallet(folder)
    holding = Holding(
        make_node_id(wallet.wallet, shard),
        secrets.token_hex(12),
        model.model_key,
        model.revision,
        shard,
        model.n_layers,
        model.hidden_size,
        model.context_length,
        model.dtype,
    )
    engine: ShardEngine = SlowedEngine(FakeEngine(shard, args.kv_budget), args.step_ms / 1000 / len(shard))
    if args.hungry_mib:
        engine = HungryEngine(engine, args.hungry_mib << 20)
    if (point := fail_point_of(os.environ)) is not None:
        engine = FailingEngine(engine, point)
    async with contextlib.AsyncExitStack() as stack:
        wall = SteadyClock(wall_clock(os.environ), time.monotonic)
        trust = WitnessingTrust(wall, home / f"{args.name}{ENDING}") if args.strict else Trust(wall, required=False)
        connector = MeshConnector(wallet, trust.ticket_for, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, trust_env=False))
        plain = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        client = await stack.enter_async_context(open_http())
        prover = Prover(wallet, trust.trackers, time.monotonic, wall, draw_nonce, required=args.strict)
        node = Node(Identity(holding), http, trust=trust, prover=prover)
        guard = Guard("local", access.NODE, KeyRing, node.now, wall, wallet=wallet.wallet)
        status = partial(status_of, node, args.name, (0, 0), (args.tracker,), True)
        app = node_app(node, args.name, status, guard=guard)
        site = await serve(app, "127.0.0.1", args.port)
        stack.push_async_callback(site.close)
        stack.push_async_callback(node.close)
        said = Advertised(
            args.name, args.advertise or site.url, host.hardware_profile(folder), args.kv_budget, 1 << 30, 0, 0
        )
        signer = RequestSigner(wallet.private, wall, draw_nonce, wall.settle)
        tracker = TrackerClient(client, args.tracker, Credentials(signer=signer))
        means = Means(wallet, args.name, trust.trackers, plain, Random(), time.monotonic, wall)
        uplinks = Uplinks(means, lambda: announcer.wake())
        stack.push_async_callback(uplinks.close)
        server = site.runner.server
        assert server is not None
        address = Address(args.advertise or site.url, uplinks, server, list(filter(None, args.relay.split(","))))
        announcer = Announcer(
            *(node, tracker, wallet, said, lambda: 0, Random()),
            address=address.now,
            on_registered=lambda answer: trust.take_tracker(answer.tracker_wallet),
        )
        await node.load(lambda: (engine, FakeCodec() if shard.start == 0 else None))
        node.ready = True
        announcer.measured(engine.measure())
        run_file = write_run_file(home / "run", "node", args.name, site.url)
        stack.callback(run_file.unlink, missing_ok=True)
        node.tasks.start(announcer.run(), "announce")
        await stop.wait()
        await announcer.leave()
        await node.drain()


def draw_nonce() -> str:
    return secrets.token_hex(16)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--name", "--shard", "--tracker"):
        parser.add_argument(name, required=True)
    parser.add_argument("--advertise", default="")
    parser.add_argument("--relay", default="", help="control URLs, with commas between")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kv-budget", type=int, default=KV_BUDGET)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--strict", action="store_true", help="proofs and tickets for everything, as beyond loopback")
    parser.add_argument("--hungry-mib", type=int, default=0)
    args = parser.parse_args()
    logs.configure("INFO")
    return run(lambda stop: serve_until(stop, args))


if __name__ == "__main__":
    sys.exit(main())
