"""The relay as its own process: run file, health, SIGTERM, and what it refuses to start as."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from relay_testing import Mesh
from test_splice import prove

from daemons.relay.settings import RelayConfig
from meshnet.domain.errors import StartError
from meshnet.wire import relay as wire

COMMAND = (sys.executable, "-m", "daemons.relay", "--port", "0", "--splice-port", "0")


async def test_it_starts_serves_and_tells_its_nodes_when_to_come_back(mesh: Mesh, tmp_path: Path) -> None:
    environ = {**os.environ, "MESHNET_HOME": str(tmp_path / "home")}
    process = await asyncio.create_subprocess_exec(*COMMAND, stdout=asyncio.subprocess.PIPE, env=environ)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as http:
            url = (await process.stdout.readline()).decode().split()[4]
            async with http.get(url + "/healthz") as response:
                assert response.status == 200
            assert (tmp_path / "home/run/relay.json").exists()
            async with http.ws_connect(url + wire.CONTROL) as control:
                key = mesh.key("anna")
                challenge = wire.decode((await control.receive()).data, wire.Challenge)
                await control.send_str(
                    wire.encode(prove(key, key.private.sign(wire.seat_proof(challenge, key.public_key)))).decode()
                )
                wire.decode((await control.receive()).data, wire.Welcome)
                process.send_signal(signal.SIGTERM)
                leaving = wire.decode((await control.receive()).data, wire.Leaving)
                assert leaving.spread_s >= 10
                assert (await control.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            assert await process.wait() == 0
            assert not (tmp_path / "home/run/relay.json").exists()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_beyond_loopback_without_trackers_it_says_what_to_do(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--host",
        "0.0.0.0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "MESHNET_HOME": str(tmp_path)},
    )
    out, said = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (1, b"")
    assert said.decode().count("\n") == 1
    assert "--trackers" in said.decode()


@pytest.mark.parametrize(
    "settings",
    [
        {"trackers": "NOT A WALLET", "host": "0.0.0.0"},
        {"port": 70_000},
        {"max_nodes": 0},
        {"idle_s": 0.0},
        {"tls_certificate": "cert.pem"},
    ],
)
def test_settings_out_of_range_name_themselves(settings: dict[str, object]) -> None:
    with pytest.raises(StartError, match=next(iter(settings))):
        RelayConfig(**settings)  # type: ignore[arg-type]
