"""Trackers that answer badly: with errors, nonsense, half a body, late or never. The console says so and goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from meshnet.domain.errors import MeshnetError
from tests.tui import canned
from tests.tui.apps import Clock
from tests.tui.rest import press, settle
from tests.tui.screen_text import text_of
from tui.app import ConsoleApp
from tui.settings import Settings
from tui.source import ChatAsk
from tui.tracker_source import TrackerSource

JSON = "application/json"
BAD = {
    "500 in our shape": (500, JSON, b'{"error":{"message":"the [/b] base\\u001b[2J is gone","type":"x","code":"x"}}'),
    "500 of a proxy": (502, "text/html", b"<html>bad gateway</html>"),
    "no JSON": (200, JSON, b'{"nodes": [{"node_id": '),
    "other JSON": (200, JSON, b'{"nodes": [{"node_id": 5}], "data": 7, "models": {}, "calls": "x"}'),
    "no numbers": (200, JSON, b'{"nodes": [NaN]}'),
    "not UTF-8": (200, JSON, b'{"nodes": ["\xff\xfe"]}'),
    "nothing": (200, JSON, b""),
    "half a body": (200, JSON, None),
}  # fmt: skip


@asynccontextmanager
async def answering(status: int, kind: str, body: bytes | None) -> AsyncGenerator[str, None]:
    """A server on loopback that gives every request this answer; None: half of one, then it hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        promised = 100 if body is None else len(body)
        head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {promised}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + (b'{"nodes"' if body is None else body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_is_an_error_of_ours_in_polls_chats_and_explanations(name: str) -> None:
    async with answering(*BAD[name]) as url:
        source = TrackerSource(url, Clock(canned.NOON))
        try:
            with pytest.raises(MeshnetError):
                await source.snapshot()
            with pytest.raises(MeshnetError):
                await source.explain("m-7b", (), None)
            with pytest.raises(MeshnetError):
                [piece async for piece in source.chat(ChatAsk("m-7b", ()))]
            with contextlib.suppress(MeshnetError):  # A stream that ends is asked for again, as one that fails.
                assert [event async for event in source.events(0)] == []
        finally:
            await source.close()


@pytest.mark.parametrize("name", ["500 in our shape", "other JSON"])
async def test_the_screen_names_what_is_wrong_and_stays(name: str) -> None:
    async with answering(*BAD[name]) as url:
        settings = Settings(tracker=url, theme="meshnet", ascii=False)
        app = ConsoleApp(TrackerSource(url, Clock(canned.NOON)), settings, Clock(1000.0), Clock(canned.NOON))
        async with app.run_test(size=(100, 30)) as pilot:
            for _ in range(200):
                if app.poller.link.failures:
                    break
                await pilot.pause()
            assert app.poller.link.failures
            app.redraw()
            await settle(pilot)
            shown = text_of(app)
            assert "no answer yet" in shown
            assert app.poller.link.error.split("\x1b")[0][:40] in shown
            assert "\x1b" not in shown
            await press(pilot, "2", "3", "6", *"hi", "enter", "escape", "7")
            assert app.is_running
