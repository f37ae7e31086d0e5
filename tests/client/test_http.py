"""The client's errors, and that an answer left early is really hung up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from daemons.kit.web import make_app, serve
from meshnet.client.http import Door, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError, NoRoute, Overloaded, Unreachable
from meshnet.wire import api
from meshnet.wire.messages import Health


@pytest.fixture
async def site() -> AsyncIterator[Callable]:
    sites = []

    async def start(*routes: web.RouteDef) -> str:
        sites.append(await serve(make_app(routes, 1 << 20), "127.0.0.1", 0))
        return sites[-1].url

    yield start
    for one in sites:
        await one.close()


def saying(text: str) -> Callable:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return handler


async def test_nobody_there_says_where_and_what_to_start() -> None:
    async with open_http() as http:
        with pytest.raises(Unreachable, match=r"tracker at http://127.0.0.1:9 is not reachable.*meshnet up"):
            await TrackerClient(http, "http://127.0.0.1:9/").health()


async def test_proxies_of_the_environment_are_not_asked(site, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    url = await site(web.get(api.HEALTH, saying('{"status": "ok"}')))
    async with open_http() as http:
        assert await TrackerClient(http, url).health() == Health("ok")


async def test_errors_come_back_as_the_class_they_were(site) -> None:
    async def no_route(_: web.Request) -> web.Response:
        raise NoRoute("layers 3-4 are missing")

    async def busy(_: web.Request) -> web.Response:
        raise Overloaded("no room")

    url = await site(web.get(api.NODES, no_route), web.get(api.MODELS, busy))
    async with open_http() as http:
        client = TrackerClient(http, url)
        with pytest.raises(NoRoute, match="layers 3-4"):
            await client.nodes()
        with pytest.raises(Overloaded, match="no room"):
            await client.models()


@pytest.mark.parametrize("answer", ["<html>", "{}", "[1, 2", '{"nodes": [{"node_id": 5}]}'])
async def test_answer_that_is_none_is_an_error_of_ours(site, answer: str) -> None:
    url = await site(web.get(api.NODES, saying(answer)))
    async with open_http() as http:
        with pytest.raises(MeshnetError) as caught:
            await TrackerClient(http, url).nodes()
    assert caught.value.code == "bad_answer"


async def test_broken_connection_is_unreachable(site) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    url = await site(web.get(api.NODES, hang_up))
    async with open_http() as http:
        with pytest.raises(Unreachable) as caught:
            await TrackerClient(http, url).nodes()
    assert caught.value.code == "connection_lost"


class Drip:
    """A handler that writes one line and then holds the stream; knows whether its client hung up."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()
        return response


async def test_stream_left_early_is_hung_up_even_when_cancelled_twice(site) -> None:
    drip = Drip()
    url = await site(web.get("/drip", drip.handle))
    began = asyncio.Event()
    async with open_http() as http:

        async def read() -> None:
            async with Door(http, url, "daemon", "").stream("GET", "/drip") as reading:
                async for _ in reading.lines():
                    began.set()

        task = asyncio.get_running_loop().create_task(read())
        await began.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        async with asyncio.timeout(1.0):
            await drip.gone.wait()


async def test_stream_read_to_its_end_gives_its_connection_back(site) -> None:
    ports: list[object] = []

    async def short(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername"))
        return web.Response(text="data: 1\n\n")

    url = await site(web.get("/short", short))
    async with open_http() as http:
        for _ in range(3):
            async with Door(http, url, "daemon", "").stream("GET", "/short") as reading:
                assert [line async for line in reading.lines()] == ["data: 1", ""]
    assert len(set(ports)) == 1


def test_client_imports_neither_torch_nor_textual() -> None:
    code = "import sys, meshnet.client.tracker; print(sorted({'torch','textual','aiohttp','numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
