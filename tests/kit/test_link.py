"""Links between two daemons over real sockets: one in use per pair, whoever dials, however often, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NoReturn

import aiohttp
import msgspec
import pytest
from aiohttp import web

from daemons.kit.link import Link, Links
from daemons.kit.web import Site, make_app, serve
from meshnet.domain.errors import NodeFailed
from meshnet.wire import api, frames
from meshnet.wire.frames import Hidden
from meshnet.wire.messages import Close, Hello


@dataclass(slots=True)
class End:
    """One daemon: its links, what it heard, what closed."""

    hello: Hello
    http: aiohttp.ClientSession
    got: list[Hidden | msgspec.Struct] = field(default_factory=list)
    closed: list[Link] = field(default_factory=list)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    links: Links = field(init=False)
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.links = Links(lambda: self.hello, self._on_message, self._on_closed, self.http, time.monotonic)

    def _on_message(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        self.got.append(message)
        self.stirred.set()

    def _on_closed(self, link: Link) -> None:
        self.closed.append(link)
        self.stirred.set()

    @property
    def name(self) -> str:
        return self.hello.peer_id

    async def dial(self, other: End, timeout_s: float = 2.0) -> Link:
        return await self.links.to(other.name, other.site.url, timeout_s)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not true():
                self.stirred.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self.stirred.wait()


@contextlib.asynccontextmanager
async def ends(*names: str) -> AsyncIterator[list[End]]:
    async with aiohttp.ClientSession() as http:
        made = []
        for name in names:
            end = End(Hello(peer_id=name, role="node", boot=f"boot-of-{name}", wire_version=api.WIRE_VERSION), http)
            end.site = await serve(make_app([web.get(api.LINK, end.links.accept)], 1 << 20), "127.0.0.1", 0)
            made.append(end)
        try:
            yield made
        finally:
            for end in made:
                await end.links.close()
            for end in made:
                await end.site.close()


async def test_one_link_serves_both_ways_and_every_asker() -> None:
    async with ends("a.0-1", "b.2-3") as (a, b):
        first, second = await asyncio.gather(a.dial(b), a.dial(b))
        assert first is second
        first.post(Close(1, 0))
        await b.until(lambda: bool(b.got))
        assert await b.dial(a) is b.links.get("a.0-1")
        (await b.dial(a)).post(Close(2, 0))
        await a.until(lambda: bool(a.got))
        assert (a.got, b.got, len(a.links), len(b.links)) == ([Close(2, 0)], [Close(1, 0)], 1, 1)


async def test_simultaneous_dials_agree_on_the_smaller_ones_and_lose_nothing() -> None:
    for _ in range(10):
        async with ends("a.0-1", "b.2-3") as (a, b):
            from_a, from_b = await asyncio.gather(a.dial(b), b.dial(a))
            for n in range(20):
                from_a.post(Close(n, 0))
                from_b.post(Close(n, 1))
            await a.until(lambda a=a: len(a.got) == 20)
            await b.until(lambda b=b: len(b.got) == 20)
            in_use_a, in_use_b = a.links.get("b.2-3"), b.links.get("a.0-1")
            assert in_use_a is not None and in_use_b is not None
            assert in_use_a.dialled != in_use_b.dialled
            if len(a.links) == 2:
                assert in_use_a.dialled
            assert not a.closed and not b.closed


async def test_a_restarted_peer_replaces_its_old_link() -> None:
    async with ends("a.0-1", "b.2-3") as (a, b):
        old = await a.dial(b)
        again = End(msgspec.structs.replace(a.hello, boot="another-boot"), a.http)
        new = await again.links.to(b.name, b.site.url)
        await b.until(lambda: b.links.get("a.0-1") is not None and b.links.get("a.0-1").peer.boot == "another-boot")
        await a.until(lambda: old.closed.is_set())
        await b.until(lambda: len(b.links) == 1)
        assert not new.closed.is_set()
        await again.links.close()


async def test_a_closed_link_is_told_to_both_ends_and_dialled_anew() -> None:
    async with ends("a.0-1", "b.2-3") as (a, b):
        link = await a.dial(b)
        await link.shut()
        await a.until(lambda: a.closed == [link])
        await b.until(lambda: len(b.closed) == 1)
        assert (len(a.links), len(b.links)) == (0, 0)
        assert await a.dial(b) is not link


async def test_garbage_closes_only_that_link() -> None:
    async with ends("a.0-1", "b.2-3", "c.4-5") as (a, b, c):
        good = await c.dial(b)
        bad = await a.dial(b)
        bad.post(b"\xff" * 1000)
        await a.until(lambda: bad.closed.is_set())
        good.post(Close(3, 0))
        await b.until(lambda: bool(b.got))
        assert b.got == [Close(3, 0)] and not good.closed.is_set()


async def test_dialling_nobody_says_unreachable() -> None:
    with sockets.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        async with ends("a.0-1") as (a,):
            with pytest.raises(NodeFailed) as caught:
                await a.links.to("b.2-3", url)
            assert (caught.value.code, caught.value.node_id) == ("unreachable", "b.2-3")
            assert caught.value.message == f"b.2-3 is unreachable: nothing listens at {url}."


async def test_dialling_what_takes_no_link_is_said_plainly() -> None:
    async with ends("a.0-1") as (a,):
        stranger = await serve(make_app([], 1 << 20), "127.0.0.1", 0)
        with pytest.raises(NodeFailed) as caught:
            await a.links.to("b.2-3", stranger.url)
        assert caught.value.message == f"b.2-3 is unreachable: {stranger.url} takes no link (HTTP 404)."
        await stranger.close()


async def test_refusal_of_our_own_dialling_keeps_its_reason() -> None:
    class Refusing(aiohttp.TCPConnector):
        async def _create_connection(self, req: aiohttp.ClientRequest, traces: object, timeout: object) -> NoReturn:
            raise aiohttp.ClientConnectorError(req.connection_key, OSError(0, "there is no ticket for wallet"))

    hello = Hello(peer_id="a.0-1", role="node", boot="boot-of-a", wire_version=api.WIRE_VERSION)
    async with aiohttp.ClientSession(connector=Refusing()) as http:
        links = Links(lambda: hello, lambda link, message: None, lambda link: None, http, time.monotonic)
        with pytest.raises(NodeFailed) as caught:
            await links.to("b.2-3", "http://127.0.0.1:1")
        assert caught.value.message == "b.2-3 is unreachable: http://127.0.0.1:1: there is no ticket for wallet."
        await links.close()


async def test_dialling_a_black_hole_ends_at_the_deadline() -> None:
    with sockets.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with ends("a.0-1") as (a,):
            with pytest.raises(NodeFailed, match=r"within 0\.2 s"):
                await a.links.to("b.2-3", f"http://127.0.0.1:{mute.getsockname()[1]}", 0.2)


async def test_a_peer_that_moved_is_not_waited_for_where_it_was() -> None:
    with sockets.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with ends("a.0-1", "b.2-3") as (a, b):
            before = asyncio.ensure_future(a.links.to(b.name, f"http://127.0.0.1:{mute.getsockname()[1]}", 5.0))
            await asyncio.sleep(0)
            link = await asyncio.wait_for(a.dial(b), 2.0)
            assert link.peer_id == b.name and not before.done()
            before.cancel()


async def test_another_peer_at_the_address_is_an_epoch_change() -> None:
    async with ends("a.0-1", "b.2-3") as (a, b):
        with pytest.raises(NodeFailed) as caught:
            await a.links.to("c.4-5", b.site.url)
        assert (caught.value.code, caught.value.node_id) == ("epoch_changed", "c.4-5")
        await b.until(lambda: len(b.links) == 0)


@pytest.mark.parametrize(
    "first",
    [
        b"\x00" * 50,
        frames.encode_control(Close(1, 0)),
        frames.encode_control(Hello(peer_id="x.0-1", role="node", boot="boot-0001", wire_version=99)),
    ],
)
async def test_who_does_not_say_hello_is_refused(first: bytes) -> None:
    async with ends("b.2-3") as (b,), b.http.ws_connect(b.site.url + api.LINK) as socket:
        await socket.send_bytes(first)
        message = await socket.receive(5)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4002)
        assert len(b.links) == 0


async def test_a_slow_reader_is_cut_and_others_go_on() -> None:
    async with ends("b.2-3") as (b,), b.http.ws_connect(b.site.url + api.LINK) as socket:
        hello = Hello(peer_id="slow.0-1", role="node", boot="boot-slow", wire_version=api.WIRE_VERSION)
        await socket.send_bytes(frames.encode_control(hello))
        await b.until(lambda: b.links.get("slow.0-1") is not None)
        link = b.links.get("slow.0-1")
        assert link is not None
        with pytest.raises(NodeFailed):
            for _ in range(100):
                link.post(bytes(1 << 20))
        await b.until(lambda: b.closed == [link])
