"""Events through a tracker's end and next start, as a reader that comes back with the last id it saw."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from daemons.tracker.keeping import LOST_IDS
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import Unreachable
from meshnet.wire.routing import EventMessage
from tests.tracker.fake_head import FakeHead
from tests.tracker.running import body, claim, node_id_of, playing_nodes
from tests.tracker.test_process import process

CALLS = 5


async def read_until(client: TrackerClient, after: int, finished: int) -> list[EventMessage]:
    """Events after an id, up to the one that says so many calls are finished."""
    seen: list[EventMessage] = []
    async with client.events(after=after) as events:
        async for event in events:
            seen.append(event)
            if sum(event.kind == "call.finished" for event in seen) == finished:
                break
    return seen


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_reader_that_comes_back_misses_nothing_that_others_saw(tmp_path: Path, how: signal.Signals) -> None:
    async with open_http() as http, FakeHead(node_id_of(1, 0, 29)) as head:
        async with process(tmp_path) as (tracker, found):
            client = playing_nodes(http, found.url)
            await client.register(claim(1, 0, 29, head.url))
            await client.ask(body())
            ours = await read_until(client, 0, 1)
            for _ in range(CALLS):
                await client.ask(body())
            others = await read_until(client, 0, 1 + CALLS)
            tracker.send_signal(how)
            await tracker.wait()
            with pytest.raises(Unreachable):
                await client.health()
        async with process(tmp_path) as (tracker, found):
            client = playing_nodes(http, found.url)
            await client.register(claim(1, 0, 29, head.url))
            await client.ask(body())
            ours += await read_until(client, ours[-1].id, 1 + CALLS)
    assert ours[: len(others)] == others
    ids = [event.id for event in ours]
    assert ids == sorted(set(ids)) and ids[: len(others)] == list(range(1, len(others) + 1))
    assert ids[-1] <= len(others) + LOST_IDS + 20
    assert [event.kind for event in ours].count("node.joined") == 2
