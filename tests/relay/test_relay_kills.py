"""Relays of a running mesh that die by SIGKILL in mid-answer: real processes with fake engines, all behind relays."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemons.kit.tasks import Tasks
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError
from meshnet.wire.messages import NodeMessage
from tests.failover.fleet import LOOK_S, START_S, Fleet, Listening, listen, whole

SHARDS = {"a": "0-9", "b": "10-19", "c": "20-29"}
TOKENS = 120
KILL_AT = 20
SPARE_WAIT_S = 4.0
"""A call with no route left waits so long for one."""
PATIENT = ("--timeout-between-tokens", "0.6", "--timeout-first-token", "8", "--log-level", "INFO")
BACK_S = 30.0
SLACK_S = 15.0
"""Beyond a deadline of the mesh's, on a machine that others keep busy."""


class Relayed(Fleet):
    async def start_relay(self, name: str, port: int = 0) -> str:
        """Its control URL."""
        wallet = (await self.client.health()).wallet
        command = ["-m", "daemons.relay", "--name", name, "--port", str(port), "--splice-port", "0"]
        return await self._start(name, [*command, "--trackers", wallet], {})

    async def at(self, relay: str) -> dict[str, NodeMessage]:
        """The nodes, once each of them is ready and reached through this relay."""
        there = ":" + re.findall(r"links: port (\d+)", (self.home / f"{relay}.log").read_text())[-1] + "/"
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(MeshnetError):
                    nodes = await self.nodes()
                    if {name for name, node in nodes.items() if node.state == "ready" and there in node.url} == set(
                        SHARDS
                    ):
                        return nodes
                await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def relayed_mesh(home: Path, *relays: str, spare_wait_s: float) -> AsyncIterator[Relayed]:
    fleet = Relayed(home)
    async with open_http() as http:
        try:
            url = await fleet.start_tracker(*PATIENT, "--spare-wait", f"{spare_wait_s:g}")
            fleet.client = TrackerClient(http, url)
            urls = [await fleet.start_relay(name) for name in relays]
            for name, shard in SHARDS.items():
                await fleet.start_node(name, shard, "--relay", ",".join(urls), wait=False)
            await fleet.at(relays[0])
            yield fleet
        finally:
            await fleet.close()


async def test_stream_goes_on_through_the_second_relay_when_the_first_is_killed(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with relayed_mesh(tmp_path, "r1", "r2", spare_wait_s=START_S) as fleet:
        answer = Listening(fleet.client, "two relays", TOKENS, tasks)
        await answer.token(KILL_AT)
        await fleet.kill("r1")
        told = await answer.end()
        assert told.text == whole("two relays", TOKENS)
        (call, *_) = (await fleet.client.calls()).calls
        assert call.outcome == "ok" and call.reroutes >= 1, "the relay was in the way"
        nodes = await fleet.at("r2")
        assert all(node.relayed for node in nodes.values())
        await tasks.close()


async def test_without_a_second_relay_the_error_is_clear_and_the_nodes_return_with_it(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with relayed_mesh(tmp_path, "r1", spare_wait_s=SPARE_WAIT_S) as fleet:
        port = int(fleet.listens_at("r1").rsplit(":", 1)[1])
        answer = Listening(fleet.client, "one relay", TOKENS, tasks)
        await answer.token(KILL_AT)
        await fleet.kill("r1")
        killed_at = time.monotonic()
        with pytest.raises(MeshnetError) as caught:
            await answer.end()
        assert time.monotonic() - killed_at < SPARE_WAIT_S + SLACK_S
        assert "no other route is left" in caught.value.message
        assert whole("one relay", TOKENS).startswith(answer.told.text) and answer.told.tokens >= KILL_AT
        await fleet.start_relay("r1", port)
        began = time.monotonic()
        while True:
            with contextlib.suppress(MeshnetError):
                assert (await listen(fleet.client, "again", 8)).text == whole("again", 8)
                break
            assert time.monotonic() - began < BACK_S + SLACK_S
            await asyncio.sleep(LOOK_S)
        await tasks.close()
