"""The tracker as a process: how it starts, says where it is, refuses, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from daemons.tracker.__main__ import main, read_settings, rightful
from daemons.tracker.store import Saved
from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import Overloaded, StartError
from meshnet.wire.runfile import RunFile
from tests.tracker.fake_head import FakeHead, Talk, whole_text
from tests.tracker.running import body, claim, node_id_of, playing_nodes

STARTS_WITHIN_S = 30.0


@contextlib.asynccontextmanager
async def process(home: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, RunFile]]:
    tracker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "daemons.tracker",
        "--port",
        "0",
        *flags,
        env={**os.environ, "MESHNET_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert tracker.stdout is not None
        # The line comes when it listens and its run file is there.
        line = await asyncio.wait_for(tracker.stdout.readline(), STARTS_WITHIN_S)
        found = msgspec.json.decode((home / "run" / "tracker.json").read_bytes(), type=RunFile)
        assert found.url in line.decode()
        yield tracker, found
    finally:
        if tracker.returncode is None:
            tracker.kill()
        await tracker.communicate()


async def test_stop_in_the_middle_of_a_stream_says_so_and_exits_zero(tmp_path: Path) -> None:
    async with (
        process(tmp_path, "--drain", "0.2") as (tracker, found),
        open_http() as http,
        FakeHead(node_id_of(1, 0, 29)) as head,
    ):
        assert found.pid == tracker.pid and found.kind == "tracker"
        client = playing_nodes(http, found.url)
        await client.register(claim(1, 0, 29, head.url))

        async def endless(talk: Talk) -> None:
            await talk.say(3)
            await talk.hang()

        head.script = endless
        try:
            async with client.chat(body()) as stream:
                sent = False
                async for event in stream:
                    if isinstance(event, TextDelta) and event.text and not sent:
                        sent = True  # a second one would end it at once
                        tracker.send_signal(signal.SIGTERM)
            raise AssertionError("the stream ended as if whole")
        except Overloaded as error:
            assert error.code == "shutting_down"
        assert await asyncio.wait_for(tracker.wait(), 5.0) == 0
        assert not (tmp_path / "run" / "tracker.json").exists()


async def test_drain_lets_a_running_answer_end_and_refuses_new_ones(tmp_path: Path) -> None:
    async with (
        process(tmp_path) as (tracker, found),
        open_http() as http,
        FakeHead(node_id_of(1, 0, 29)) as head,
    ):
        client = playing_nodes(http, found.url)
        await client.register(claim(1, 0, 29, head.url))
        refused = asyncio.Event()

        async def slow(talk: Talk) -> None:
            await talk.say(3)
            await refused.wait()
            await talk.say(5)
            await talk.finish()

        head.script = slow
        text = ""
        async with client.chat(body()) as stream:
            async for event in stream:
                if isinstance(event, TextDelta) and event.text and not refused.is_set():
                    tracker.send_signal(signal.SIGTERM)
                    await refusal(client)
                    refused.set()
                text += event.text if isinstance(event, TextDelta) else ""
        assert text == whole_text(1, 8)
        assert await asyncio.wait_for(tracker.wait(), 10.0) == 0


async def refusal(client: TrackerClient) -> None:
    """Ask until the tracker says that it stops: the signal may take a moment."""
    async with asyncio.timeout(10.0):
        while True:
            try:
                async with client.chat(body(stream=True, max_tokens=1)):
                    pass  # Taken before the signal; hanging up cancels it.
            except Overloaded as error:
                assert error.code == "shutting_down"
                return


async def test_second_signal_cuts_the_drain_short_and_the_stream_still_ends_with_an_error(tmp_path: Path) -> None:
    async with process(tmp_path) as (tracker, found), open_http() as http, FakeHead(node_id_of(1, 0, 29)) as head:
        client = playing_nodes(http, found.url)
        await client.register(claim(1, 0, 29, head.url))

        async def endless(talk: Talk) -> None:
            await talk.say(3)
            await talk.hang()

        head.script = endless
        with pytest.raises(Overloaded) as caught:
            async with client.chat(body()) as stream:
                sent = False
                async for event in stream:
                    if isinstance(event, TextDelta) and event.text and not sent:
                        sent = True
                        tracker.send_signal(signal.SIGTERM)
                        await refusal(client)
                        tracker.send_signal(signal.SIGTERM)
        assert caught.value.code == "shutting_down"
        assert await asyncio.wait_for(tracker.wait(), 10.0) == 0


def test_counts_of_another_tracker_are_left_out() -> None:
    row = ("m", "per_minute", 1, 61, 5)
    assert rightful(Saved("ours", 1, demand=[row]), "ours").demand == [row]
    assert rightful(Saved(None, None, demand=[row]), "ours").demand == [row]
    assert rightful(Saved("copied", 7, demand=[row], last_seq=3), "ours") == Saved("copied", 7, demand=(), last_seq=3)


def test_port_in_use_is_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MESHNET_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port), "--log-level", "CRITICAL"]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err.splitlines()[-1]


def test_beyond_loopback_is_refused_in_one_line(capsys) -> None:
    assert main(["--host", "0.0.0.0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "0.0.0.0" in line and "keys" in line


def test_settings_come_from_file_environment_and_flags(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "meshnet.toml"
    file.write_text("[tracker]\nport = 1111\nspare_wait = 9.0\nroute_weight_alpha = 2.0\n")
    monkeypatch.setenv("MESHNET_SPARE_WAIT", "8")
    monkeypatch.setenv("MESHNET_ROUTE_MIN_SAMPLE_TOKENS", "4")
    settings = read_settings(["--config", str(file), "--port", "2222"])
    assert (settings.port, settings.spare_wait, settings.route_weight_alpha) == (2222, 8.0, 2.0)
    assert settings.routing().min_sample_tokens == 4


def test_bad_settings_name_field_and_range(tmp_path: Path) -> None:
    file = tmp_path / "meshnet.toml"
    file.write_text("[tracker]\nprot = 1111\n")
    for flags, words in (
        (["--config", str(file)], "prot"),
        (["--port", "70000"], "65535"),
        (["--timeout-call", "-1"], "timeout_call"),
    ):
        try:
            read_settings(flags)
            raise AssertionError(flags)
        except StartError as error:
            assert words in error.message
    assert main(["--route-explore-share", "1.5"]) == 1
