"""``meshnet ca``: what it makes opens a TLS door for those who have its file, and for nobody else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from daemons.kit.tls import server_context
from daemons.kit.web import json_response, make_app, serve
from meshnet.cli.ca import app
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import StartError, Unreachable
from meshnet.wire.messages import Health


def run(home: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env={"MESHNET_HOME": str(home)})
    return result.exit_code, result.stdout


def files(output: str) -> tuple[Path, Path]:
    words = output.split()[-4:]
    assert words[::2] == ["--tls-certificate", "--tls-key"]
    return Path(words[1]), Path(words[3])


async def health(_: web.Request) -> web.Response:
    return json_response(Health("ok"))


async def test_clients_with_the_ca_file_come_in_and_others_do_not(tmp_path: Path) -> None:
    code, out = run(tmp_path, "init", "127.0.0.1", "mesh.example")
    assert code == 0
    certificate, key = files(out)
    site = await serve(make_app([web.get("/healthz", health)], 1024), "127.0.0.1", 0, server_context(certificate, key))
    run(tmp_path / "other", "init")
    try:
        for ca, comes_in in ((tmp_path / "ca/ca.pem", True), (tmp_path / "other/ca/ca.pem", False), (None, False)):
            async with open_http(ca_file=str(ca or "")) as http:
                if comes_in:
                    assert (await TrackerClient(http, site.url).health()).status == "ok"
                else:
                    with pytest.raises(Unreachable):
                        await TrackerClient(http, site.url).health()
    finally:
        await site.close()


def test_keys_are_for_their_owner_and_the_ca_is_made_once(tmp_path: Path) -> None:
    run(tmp_path, "init", "a.example")
    first = (tmp_path / "ca/ca.pem").read_bytes()
    code, out = run(tmp_path, "issue", "b.example")
    run(tmp_path, "init")
    assert code == 0 and (tmp_path / "ca/ca.pem").read_bytes() == first
    for path in (tmp_path / "ca/ca.key", files(out)[1]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_ca_it_says_what_to_run(tmp_path: Path) -> None:
    assert run(tmp_path, "issue", "a.example")[0] == 1
    assert run(tmp_path, "init")[0] == 0
    assert run(tmp_path, "issue", "no name")[0] == 1


def test_a_ca_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StartError, match=r"/nowhere\.pem"):
        open_http(ca_file="/nowhere.pem")
