"""What a peer may send that is not right: it costs itself at most, never another session, never the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from meshnet.domain.chat import Sampling
from meshnet.domain.engine import ITEMSIZE, Rows
from meshnet.wire.frames import SessionRows, cut
from meshnet.wire.messages import Cancel, Close, Delta, Failed, Open, Opened, Probe, Probed
from tests.mesh.fake_engine import expected_tokens, facts, prompt_ids
from tests.mesh.ring import Mesh, RunningNode, Scripted, open_mesh

KEY = (77, 0)


def rows(count: int, hidden: int = 8, dtype: str = "float32") -> Rows:
    return Rows(dtype, (count, hidden), bytes(count * hidden * ITEMSIZE[dtype]))


def frame(
    key: tuple[int, int] = KEY,
    start: int = 10,
    end: int = 29,
    position: int = 0,
    step: int = 0,
    sent: Rows | None = None,
) -> bytes:
    sent = sent or rows(2)
    (message,) = cut(start, end, [(SessionRows(key, position, step, sent.shape[0], sample=True), sent)])
    return message


@asynccontextmanager
async def opened_by_script() -> AsyncIterator[tuple[Mesh, Scripted, RunningNode]]:
    """A scripted head (0-9) with session KEY open on a real tail (10-29)."""
    async with open_mesh() as mesh, mesh.scripted("0-9") as head:
        tail = await mesh.add("10-29")
        await head.links.to(tail.node_id, tail.site.url)
        head.tell(tail.node_id, open_frame(head, tail))
        await head.heard(Opened)
        yield mesh, head, tail


def open_frame(head: Scripted, tail: RunningNode, key: tuple[int, int] = KEY) -> Open:
    model = facts()
    return Open(
        session=key[0],
        attempt=key[1],
        call_id="call",
        model_key=model.model_key,
        revision=model.revision,
        dtype="float32",
        hops=(head.hop(0, 9), tail.hop(10, 29)),
        index=1,
        reserve_tokens=20,
        sampling=Sampling(),
        prompt_ids=(1, 2),
    )


@pytest.mark.parametrize(
    "bad",
    [
        frame(sent=rows(2, hidden=577)),
        frame(sent=rows(2, dtype="bfloat16")),
        frame(start=11),
        frame(end=28),
        frame(start=0, end=29),
        frame(position=1),
        frame(step=3),
        frame(sent=rows(21)),
    ],
)
async def test_a_bad_row_of_the_owner_ends_its_session_alone(bad: bytes) -> None:
    async with opened_by_script() as (mesh, head, tail):
        head.tell(tail.node_id, open_frame(head, tail, (78, 0)))
        head.tell(tail.node_id, bad)
        failed = await head.heard(Failed)
        assert (failed.session, failed.code, failed.culprit) == (77, "bad_rows", head.node_id)
        assert {session.key for session in tail.node.sessions} == {(78, 0)}
        assert tail.node.worker.forward_steps == 0
        head.tell(tail.node_id, Cancel(78, 0))
        await mesh.all_free()


async def test_rows_of_an_unknown_session_are_dropped() -> None:
    async with opened_by_script() as (_, head, tail):
        head.tell(tail.node_id, frame(key=(77, 1)))
        head.tell(tail.node_id, frame(key=(99, 0)))
        head.tell(tail.node_id, Probe(*KEY, step=0))
        await head.heard(Probed)
        assert tail.node.hops.dropped_rows == 4
        assert len(tail.node.sessions) == 1


async def test_a_stranger_can_neither_feed_nor_end_nor_ask_about_a_session() -> None:
    async with opened_by_script() as (mesh, _, tail), mesh.scripted("0-9", "stranger") as stranger:
        await stranger.links.to(tail.node_id, tail.site.url)
        stranger.tell(tail.node_id, frame())
        stranger.tell(tail.node_id, Cancel(*KEY))
        stranger.tell(tail.node_id, Close(*KEY))
        stranger.tell(tail.node_id, Probe(*KEY, step=0))
        assert (await stranger.heard(Probed)).known is False
        assert len(tail.node.sessions) == 1
        assert tail.node.worker.forward_steps == 0


async def test_an_open_from_the_wrong_hop_is_refused() -> None:
    async with open_mesh() as mesh, mesh.scripted("0-9") as head, mesh.scripted("0-9", "stranger") as stranger:
        tail = await mesh.add("10-29")
        await head.links.to(tail.node_id, tail.site.url)
        await stranger.links.to(tail.node_id, tail.site.url)
        stranger.tell(tail.node_id, open_frame(head, tail))
        assert (await head.heard(Failed)).code == "wrong_peer"
        await mesh.all_free()


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "fedcba9876543210"},
        {"dtype": "float16"},
        {"model_key": "other"},
        {"index": 5},
        {"index": 0},
        {"reserve_tokens": 1 << 24},
    ],
)
async def test_an_impossible_open_is_refused(change: dict[str, object]) -> None:
    async with open_mesh() as mesh, mesh.scripted("0-9") as head:
        tail = await mesh.add("10-29")
        await head.links.to(tail.node_id, tail.site.url)
        head.tell(tail.node_id, msgspec.structs.replace(open_frame(head, tail), **change))
        await head.heard(Failed)
        await mesh.all_free()


@pytest.mark.parametrize("garbage", [b"\xffgarbage", b"MNH1" + bytes(36), Delta(session=1, attempt=0, text="x")])
async def test_garbage_costs_the_link_and_its_sessions_only(garbage: bytes | Delta) -> None:
    async with opened_by_script() as (mesh, head, tail):
        whole = await mesh.add("0-29")
        link = head.links.get(tail.node_id)
        assert link is not None
        head.tell(tail.node_id, garbage)
        async with asyncio.timeout(5):
            await link.closed.wait()
        await mesh.all_free()
        answer = await mesh.ask(mesh.route(whole))
        await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids("what is a mesh"), 12)
