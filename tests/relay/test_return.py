"""A relay that was away for a while: its nodes come back within 30 s, and not all at once."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from relay_testing import NOW, until

from daemons.kit.identity import make_wallet_key
from daemons.kit.tasks import Tasks
from daemons.node.uplink import MAX_BACK_OFF_S, Uplink

CROWD = 50
AWAY_S = 60.0
"""Long enough that every node is at its longest back-off."""
BACK_S = 30.0
START_S = 30.0


class Sleepers:
    """Time that passes only from one sleeper's end to the next one's."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, self._count, done))
        await done

    def wake_one(self) -> None:
        self.now, _, done = heapq.heappop(self._waiting)
        done.set_result(None)

    @property
    def next_at(self) -> float:
        return self._waiting[0][0]


@contextlib.asynccontextmanager
async def relay_process(home: Path, port: int = 0) -> AsyncIterator[str]:
    """Its control URL; killed with -9 at the end."""
    settings = home / "relay.toml"
    settings.write_text(f"[relay]\nmax_nodes_per_address = {CROWD}\nmax_waiting_per_address = {CROWD}\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "daemons.relay", "--port", str(port), "--splice-port", "0"),
        *("--config", str(settings), "--log-level", "ERROR"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MESHNET_HOME": str(home)},
    )
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), START_S)).decode().split()[4]
    finally:
        process.kill()
        await process.wait()


def uplinks(folder: Path, url: str, http: aiohttp.ClientSession, time: Sleepers) -> list[Uplink]:
    made = []
    for number in range(CROWD):
        key = make_wallet_key(Ed25519PrivateKey.from_private_bytes(b"%032d" % number), folder / f"{number}.tls")
        made.append(
            Uplink(
                *(url, key, f"n{number}", frozenset, web.Server(_nothing), http, Random(number)),
                *(lambda: time.now, lambda: NOW + time.now, time.sleep),
            )
        )
    return made


async def _nothing(request: web.BaseRequest) -> web.Response:
    return web.Response()


async def test_fifty_nodes_are_back_within_half_a_minute_and_not_in_the_same_second(tmp_path: Path) -> None:
    time, tasks, back = Sleepers(), Tasks("crowd"), Counter[int]()
    async with aiohttp.ClientSession() as http:
        async with relay_process(tmp_path) as url:
            crowd = uplinks(tmp_path, url, http, time)
            for uplink in crowd:
                tasks.start(uplink.run(), "uplink")
            await until(lambda: all(uplink.address for uplink in crowd), START_S)
        try:
            await until(lambda: len(time) == CROWD, START_S)
            assert not any(uplink.address for uplink in crowd)
            while time.next_at < AWAY_S:
                time.wake_one()
                await until(lambda: len(time) == CROWD)
            async with relay_process(tmp_path, int(url.rsplit(":", 1)[1])):
                while len(time):
                    seated = sum(uplink.address is not None for uplink in crowd)
                    time.wake_one()
                    await until(lambda seated=seated: sum(u.address is not None for u in crowd) > seated)
                    back[int(time.now - AWAY_S)] += 1
        finally:
            await tasks.close()
            for uplink in crowd:
                await uplink.close()
    assert sum(back.values()) == CROWD
    assert max(back) < BACK_S and MAX_BACK_OFF_S <= BACK_S
    assert max(back.values()) <= CROWD // 5, f"a crowd in one second: {back}"
    assert len(back) >= 15, "over the whole time"
