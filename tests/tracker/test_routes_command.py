"""``meshnet routes`` and ``chat`` against a live tracker: the table, a decision and its why, the table that stays."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys

from tests.tracker.running import Running, body

WITHIN_S = 20.0


async def printed(running: Running, *words: str) -> tuple[int, str]:
    """Exit code and all output."""
    command = [sys.executable, "-m", "meshnet.cli", *words, "--tracker", running.url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "COLUMNS": "120"}
    )
    out, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_table_and_explanation_of_a_live_mesh(running: Running) -> None:
    for number in (1, 2):
        await running.head(number)
    await running.client.ask(body(route_policy="p2c"))
    code, out = await printed(running, "routes")
    assert code == 0 and "policy adr, explore 0.3, alpha 1" in out
    assert out.count("proven") == 1 and out.count("unsampled") == 1
    code, out = await printed(running, "routes", "--explain", "--policy", "random")
    assert code == 0 and "by random: n" in out and "because random: predicted" in out and out.count("50%") == 2


async def test_chat_says_how_and_why_its_route_was_chosen(running: Running) -> None:
    await running.head(1)
    code, out = await printed(running, "chat", "--route-policy", "random", "hi")
    assert code == 0 and "\nexploit | n1[0-29] | 8 tokens" in out
    assert " tok/s | because random: predicted 9.52 tokens/s, the best of 1 routes\n" in out


async def test_watch_draws_until_interrupted(running: Running) -> None:
    await running.head(1)
    await running.client.ask(body())
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "meshnet.cli", "routes", "--watch", "--tracker", running.url]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(slave)
    try:
        seen = ""
        async with asyncio.timeout(WITHIN_S):
            while "n1[0-29]" not in seen:
                seen += (await asyncio.to_thread(os.read, master, 4096)).decode("utf-8", "replace")
        assert "proven" in seen
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), WITHIN_S) == 130
    finally:
        if process.returncode is None:
            process.kill()
        os.close(master)
