"""Gossip and persistence cost requests nothing: a dead peer and a locked file beside a busy tracker."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from pathlib import Path
from random import Random

import pytest

from daemons.tracker.gossip import Gossip
from daemons.tracker.store import open_database
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.wire import api
from tests.tracker.running import Running, body, run_tracker

REQUESTS = 300
NOISE_S = 0.005
"""What a busy test machine adds to a hundredth of requests by itself."""


async def p99_s(running: Running) -> float:
    """Of GET /v1/models, one after the other."""
    took = []
    async with open_http() as http:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            response = await http.get(running.url + api.MODELS)
            took.append(time.perf_counter() - began)
            assert response.status_code == 200
    return statistics.quantiles(took, n=100)[98]


async def with_demand(running: Running) -> None:
    await running.head(1)
    for minute in range(60):
        for model in range(100):
            running.tracker.demand.record(f"m{model}", f"c-{minute}-{model}", time.time())


@pytest.mark.slow
async def test_dead_peer_and_locked_file_slow_no_request(tmp_path: Path) -> None:
    async with run_tracker() as plain:
        await with_demand(plain)
        baseline = await p99_s(plain)
    path = tmp_path / "t.db"
    async with run_tracker(database=open_database(path)) as troubled, open_http() as http:
        await with_demand(troubled)
        tracker = troubled.tracker
        other = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        other.execute("BEGIN IMMEDIATE")
        gossip = Gossip(
            tracker.demand,
            [TrackerClient(http, "http://127.0.0.1:9")],
            tracker.clock.now,
            tracker.clock.wall,
            Random(1),
        )

        async def trouble() -> None:
            """A hundred times as often as in life."""
            while True:
                await gossip.tick()
                await tracker.supply._save()
                await troubled.client.ask(body())
                await asyncio.sleep(0.1)

        busy = asyncio.ensure_future(trouble())
        try:
            measured = min([await p99_s(troubled) for _ in range(3)])
            assert "locked" in (await troubled.client.stats()).database
        finally:
            busy.cancel()
            other.execute("ROLLBACK")
            other.close()
            await asyncio.gather(busy, return_exceptions=True)
    assert measured <= 2 * baseline + NOISE_S, f"{measured * 1000:.1f} ms, {baseline * 1000:.1f} ms alone"
