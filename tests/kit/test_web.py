"""The daemons' HTTP server against a client that takes its time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from daemons.kit.web import make_app, serve

KEEPALIVE_S = 0.4
DRIP_S = 0.05


async def test_headers_that_never_end_are_cut() -> None:
    ran: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        ran.append(request.path)
        return web.Response()

    site = await serve(make_app([web.get("/", handler)], 1024), "127.0.0.1", 0, keepalive_s=KEEPALIVE_S)
    try:
        reader, writer = await asyncio.open_connection(site.host, site.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        async with asyncio.timeout(20):
            while not reader.at_eof():
                try:
                    await asyncio.wait_for(reader.read(), DRIP_S)
                except TimeoutError:
                    writer.write(b"X-More: of them\r\n")
                except ConnectionError:
                    break
        writer.close()
        assert ran == []
    finally:
        await site.close()
