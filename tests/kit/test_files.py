"""Weights files over HTTP: only what the manifest lists, in ranges, not faster and not for more readers than set."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from daemons.kit import files as kit_files
from daemons.kit.files import FileServer, Pace
from daemons.kit.web import make_app, serve
from meshnet.client.files import FilesClient
from meshnet.client.http import Client, open_http
from meshnet.domain.errors import InvalidRequest, NotFound, WeightsError
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store
from meshnet.wire import api

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "weights"))
from weights_testing import write_folder

LAYER = "layer-00001.safetensors"


@pytest.fixture
def tiny(tmp_path: Path) -> Store:
    store = Store(tmp_path / "models")
    target = store.path("tiny")
    target.mkdir(parents=True)
    split_folder(write_folder(tmp_path / "source"), target, "tiny", "folder", silent)
    (tmp_path / "models" / "secret.txt").write_text("secret")
    return store


@contextlib.asynccontextmanager
async def served(store: Store) -> AsyncIterator[tuple[str, Client]]:
    server = FileServer(store, lambda: 0.0)
    site = await serve(make_app([web.get(api.MODEL_FILE, server.serve, allow_head=False)], 1000), "127.0.0.1", 0)
    try:
        async with open_http() as http:
            yield site.url, http
    finally:
        await site.close()


async def test_manifest_and_files_come_whole_and_from_an_offset(tiny: Store) -> None:
    data = (tiny.path("tiny") / LAYER).read_bytes()
    async with served(tiny) as (url, http):
        client = FilesClient(http, url)
        assert json.loads(await client.small("tiny", "manifest.json"))["model_key"] == "tiny"
        assert await client.small("tiny", LAYER) == data
        rest = b"".join([piece async for piece in client.stream("tiny", LAYER, 100)])
        assert rest == data[100:]


@pytest.mark.parametrize(
    ("wanted", "status", "content_range"),
    [
        ("bytes=0-9", 206, "bytes 0-9/"),
        ("bytes=10-", 206, "bytes 10-"),
        ("bytes=5-99999999", 206, "bytes 5-"),
        ("bytes=99999999-", 416, ""),
        ("bytes=9-1", 416, ""),
        ("bytes=-5", 400, ""),
        ("bytes=0-1,4-5", 400, ""),
        ("lines=1-2", 400, ""),
    ],
)
async def test_ranges(tiny: Store, wanted: str, status: int, content_range: str) -> None:
    async with served(tiny) as (url, http):
        path = api.MODEL_FILE.format(model_key="tiny", name=LAYER)
        response = await http.get(url + path, headers={"Range": wanted})
        assert response.status_code == status
        assert response.headers.get("Content-Range", "").startswith(content_range)


@pytest.mark.parametrize(
    "name",
    ["secret.txt", "..%2Fsecret.txt", "%2e%2e%2fsecret.txt", "..", "%2Fetc%2Fpasswd", ".", "layer-9.safetensors"],
)
async def test_only_names_of_the_manifest(tiny: Store, name: str) -> None:
    async with served(tiny) as (url, http):
        response = await http.get(f"{url}/v1/models/tiny/files/{name}")
        assert response.status_code == 404 and b"secret" not in response.content.replace(b"secret.txt", b"")


@pytest.mark.parametrize("model", ["..", "nobody", "%2e%2e", "tiny%2F..%2Ftiny"])
async def test_unknown_models_are_not_found(tiny: Store, model: str) -> None:
    async with served(tiny) as (url, http):
        assert (await http.get(f"{url}/v1/models/{model}/files/{LAYER}")).status_code == 404


async def test_file_that_is_not_held_or_cut_short_is_not_found(tiny: Store) -> None:
    (tiny.path("tiny") / LAYER).write_bytes(b"short")
    async with served(tiny) as (url, http):
        with pytest.raises(NotFound, match="not held here"):
            await FilesClient(http, url).small("tiny", LAYER)


async def test_server_that_ignores_the_offset_is_refused(tiny: Store) -> None:
    async def whole(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 100)

    site = await serve(make_app([web.get(api.MODEL_FILE, whole)], 1000), "127.0.0.1", 0)
    try:
        async with open_http() as http:
            with pytest.raises(WeightsError, match="from its beginning"):
                async for _ in FilesClient(http, site.url).stream("tiny", LAYER, 10):
                    pass
    finally:
        await site.close()


def test_pace_spreads_bytes_over_time() -> None:
    now = [0.0]
    pace = Pace(1000.0, lambda: now[0])
    assert pace.owed_s(500) == pytest.approx(0.5)
    assert pace.owed_s(500) == pytest.approx(1.0), "all readers share it"
    now[0] = 100.0
    assert pace.owed_s(250) == pytest.approx(250 / 1000 - kit_files.BURST_S), "rest saves up a burst, no more"


def test_range_errors_name_the_header() -> None:
    with pytest.raises(InvalidRequest) as caught:
        kit_files._range("bytes=9-1", 100)
    assert caught.value.param == "Range"
