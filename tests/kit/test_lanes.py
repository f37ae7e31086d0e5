"""One open link: order of lanes, bounds, silence, nonsense."""

from __future__ import annotations

import asyncio
from collections import deque

import aiohttp
import pytest
from aiohttp import WSMsgType

from daemons.kit import lanes
from daemons.kit.lanes import Link
from meshnet.domain.errors import FrameError, NodeFailed
from meshnet.wire import frames
from meshnet.wire.messages import Close, Hello


class FakeSocket:
    """A WebSocket whose sends wait for ``gate`` and whose incoming messages the test queues."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.incoming: deque[aiohttp.WSMessage] = deque()
        self.pongs: list[bytes] = []
        self.pings = 0
        self.close_code: int | None = None

    async def send_bytes(self, data: bytes) -> None:
        await self.gate.wait()
        self.sent.append(data)

    async def ping(self, message: bytes = b"") -> None:
        self.pings += 1

    async def pong(self, message: bytes = b"") -> None:
        self.pongs.append(message)

    async def receive(self, timeout: float | None = None) -> aiohttp.WSMessage:
        return self.incoming.popleft()

    async def close(self, *, code: int = 1000, message: bytes = b"") -> bool:
        self.close_code = code
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


PEER = Hello(peer_id="peer.0-1", role="node", boot="boot-0001", wire_version=1)


def link_on(socket: FakeSocket, clock: Clock | None = None, *, dialled: bool = True) -> Link:
    return Link(socket, PEER, dialled=dialled, now=clock or Clock())


async def drained(link: Link, socket: FakeSocket, count: int) -> None:
    writer = asyncio.get_running_loop().create_task(link.write())
    async with asyncio.timeout(5):
        while len(socket.sent) < count:  # noqa: ASYNC110 (the fake has no event to wait for)
            await asyncio.sleep(0)
    link.cut()
    await writer


async def test_urgent_overtakes_bulk_and_each_lane_keeps_its_order() -> None:
    socket = FakeSocket()
    link = link_on(socket)
    for n in range(3):
        link.post(b"bulk%d" % n, bulk=True)
    for n in range(3):
        link.post(b"urgent%d" % n)
    assert link.queued_bytes == 3 * 5 + 3 * 7
    await drained(link, socket, 6)
    assert socket.sent == [b"urgent0", b"urgent1", b"urgent2", b"bulk0", b"bulk1", b"bulk2"]
    assert link.queued_bytes == 0


@pytest.mark.parametrize(("bulk", "limit"), [(False, lanes.URGENT_BYTES), (True, lanes.BULK_BYTES)])
async def test_a_peer_that_reads_nothing_is_cut(bulk: bool, limit: int) -> None:
    link = link_on(FakeSocket())
    piece = bytes(limit // 4)
    for _ in range(4):
        link.post(piece, bulk=bulk)
    with pytest.raises(NodeFailed) as caught:
        link.post(b"one more", bulk=bulk)
    assert (caught.value.code, caught.value.node_id) == ("link_closed", "peer.0-1")
    assert link.closed.is_set()


async def test_post_on_a_closed_link_names_the_peer() -> None:
    link = link_on(FakeSocket())
    await link.shut()
    with pytest.raises(NodeFailed, match=r"peer\.0-1"):
        link.post(Close(1, 0))


async def test_reader_decodes_answers_pings_and_ends_with_the_socket() -> None:
    socket, got = FakeSocket(), []
    socket.incoming.extend(
        [
            aiohttp.WSMessage(WSMsgType.BINARY, frames.encode_control(Close(7, 1)), None),
            aiohttp.WSMessage(WSMsgType.PING, b"x", None),
            aiohttp.WSMessage(WSMsgType.PONG, b"", None),
            aiohttp.WSMessage(WSMsgType.CLOSE, 1000, None),
        ]
    )
    await link_on(socket).read(lambda link, message: got.append(message))
    assert got == [Close(7, 1)]
    assert socket.pongs == [b"x"]


@pytest.mark.parametrize(
    "message",
    [
        aiohttp.WSMessage(WSMsgType.TEXT, "hello", None),
        aiohttp.WSMessage(WSMsgType.BINARY, b"", None),
        aiohttp.WSMessage(WSMsgType.BINARY, b"\xff garbage", None),
        aiohttp.WSMessage(WSMsgType.BINARY, b"MNH1 cut short", None),
        aiohttp.WSMessage(WSMsgType.BINARY, b"\x05{not json", None),
    ],
)
async def test_nonsense_is_a_frame_error(message: aiohttp.WSMessage) -> None:
    socket = FakeSocket()
    socket.incoming.append(message)
    with pytest.raises(FrameError):
        await link_on(socket).read(lambda link, message: None)


async def test_a_silent_peer_is_dead_after_two_pings() -> None:
    clock = Clock()
    link = link_on(FakeSocket(), clock)
    clock.now += 2 * lanes.PING_S
    assert link.is_alive()
    clock.now += lanes.PING_S
    assert not link.is_alive()


@pytest.mark.parametrize(("dialled", "alive"), [(True, False), (False, True)])
async def test_the_dialler_ends_a_retired_link_that_idles(dialled: bool, alive: bool) -> None:
    clock = Clock()
    link = link_on(FakeSocket(), clock, dialled=dialled)
    link.retired = True
    clock.now += lanes.RETIRED_IDLE_S + 1
    link.heard_at = clock.now
    assert link.is_alive() is alive
