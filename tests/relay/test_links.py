"""The daemons' own links through a relay, and what a relay's sudden death is to them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from relay_testing import Mesh, until

from daemons.kit.link import Link, Links
from daemons.kit.tasks import Tasks
from daemons.kit.web import make_app, serve
from meshnet.wire import api
from meshnet.wire.frames import Hidden
from meshnet.wire.messages import Cancel, Hello
from meshnet.wire.relay import CONTROL, dialled_url


class End:
    """One daemon's links, what it heard and what closed."""

    def __init__(self, name: str, http: aiohttp.ClientSession) -> None:
        self.peer_id = f"{name}.0-9"
        self.got: list[Hidden | msgspec.Struct] = []
        self.closed: list[Link] = []
        self.links = Links(self._hello, self._hear, self.closed.append, http, time.monotonic)

    def _hello(self) -> Hello:
        return Hello(peer_id=self.peer_id, role="node", boot="boot0001", wire_version=api.WIRE_VERSION)

    def _hear(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        self.got.append(message)


async def test_a_link_through_a_relay_is_the_same_link(mesh: Mesh) -> None:
    async with mesh.session("carl") as http, mesh.session("anna") as annas, mesh.relay() as relay:
        here, there = End("carl", http), End("anna", annas)
        async with mesh.node("anna", relay, routes=[web.get(api.LINK, there.links.accept)]) as node:
            link = await here.links.to(there.peer_id, dialled_url(node.address().url))
            messages = [Cancel(session, 0, "x" * 200) for session in range(2000)]
            for message in messages:
                link.post(message)
            await until(lambda: len(there.got) == len(messages))
            assert there.got == messages
            back = there.links.get(here.peer_id)
            assert back is not None
            back.post(Cancel(1, 2, "back"))
            await until(lambda: here.got == [Cancel(1, 2, "back")])
            await here.links.close()
            await until(lambda: len(there.closed) == 1)
        await there.links.close()


async def test_a_killed_relay_is_a_broken_link_at_both_ends(mesh: Mesh, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "daemons.relay", "--port", "0", "--splice-port", "0"),
        *("--trackers", mesh.key("tracker").wallet, "--log-level", "ERROR"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MESHNET_HOME": str(tmp_path / "home")},
    )
    tasks = Tasks("test")
    assert process.stdout is not None
    mesh.clock.seconds += time.time() - mesh.clock.wall()  # The relay's process has the real time.
    app = web.Application()
    try:
        async with asyncio.timeout(30), mesh.session("carl") as http, aiohttp.ClientSession() as plain:
            control = (await process.stdout.readline()).decode().split()[4]
            here, there = End("carl", http), End("anna", plain)
            app.add_routes([web.get(api.LINK, there.links.accept)])
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
            await runner.setup()
            uplink = mesh.uplink("anna", control, runner, plain)
            tasks.start(uplink.run(), "uplink")
            await until(lambda: uplink.address is not None)
            assert uplink.address is not None
            await here.links.to(there.peer_id, dialled_url(uplink.address.url))
            await until(lambda: there.links.get(here.peer_id) is not None)
            process.kill()
            await until(lambda: bool(here.closed and there.closed), timeout_s=1.0)
            await until(lambda: uplink.address is None)
            await here.links.close()
            await there.links.close()
            await tasks.close()
            await uplink.close()
            await runner.cleanup()
    finally:
        await tasks.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_nobody_is_talked_into_compression(mesh: Mesh) -> None:
    async with mesh.session("anna") as annas, mesh.relay() as relay, aiohttp.ClientSession() as http:
        there = End("anna", annas)
        site = await serve(make_app([web.get(api.LINK, there.links.accept)], 1024), "127.0.0.1", 0)
        for url in (site.url + api.LINK, relay.url + CONTROL):
            async with http.ws_connect(url, compress=15) as socket:
                assert not socket.compress, url
        await there.links.close()
        await site.close()
