"""The HTTP interface of a node with a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from daemons.kit.web import serve
from daemons.node.app import node_app, status_of
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from meshnet.domain.ids import Wallet, make_node_id
from meshnet.domain.shards import Shard
from meshnet.wire import api
from tests.mesh.fake_engine import FakeEngine

HEADERS = {api.DTYPE: "float32", api.SHAPE: "2,8", "Content-Type": "application/octet-stream"}
ROWS = bytes(range(64))


@dataclass(slots=True)
class Served:
    http: aiohttp.ClientSession
    url: str
    node: Node

    async def post(self, body: bytes, **headers: str) -> tuple[int, bytes, aiohttp.typedefs.LooseHeaders]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(self.url + api.FORWARD, data=body, headers=sent) as answer:
            return answer.status, await answer.read(), answer.headers


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    shard = Shard(0, 14)
    holding = Holding(
        make_node_id(Wallet("wallet01"), shard), "boot-0001", "fake", "0123456789abcdef", shard, 30, 8, 2048, "float32"
    )
    async with aiohttp.ClientSession() as http:
        node = Node(Identity(holding, epoch=3), http)
        site = await serve(
            node_app(node, "n1", lambda: status_of(node, "n1", (5, 10), ("http://t",), True)), "127.0.0.1", 0
        )
        await node.load(lambda: (FakeEngine(shard), None))
        yield Served(http, site.url, node)
        await node.close()
        await site.close()


def forward_headers(start: str | None, end: str | None = None, **changes: str) -> dict[str, str]:
    headers = {**HEADERS, **changes}
    if start is not None:
        headers[api.START_LAYER] = start
    if end is not None:
        headers[api.END_LAYER] = end
    return headers


async def test_forward_in_two_steps_equals_one(served: Served) -> None:
    status, whole, headers = await served.post(ROWS, **forward_headers("3"))
    assert (status, headers[api.SHAPE], headers[api.DTYPE]) == (200, "2,8", "float32")
    _, half, _ = await served.post(ROWS, **forward_headers("3", "7"))
    _, rest, _ = await served.post(half, **forward_headers("8"))
    assert rest == whole != half
    assert served.node.worker.forward_steps == 3


async def test_forward_takes_token_ids_at_layer_0(served: Served) -> None:
    headers = {api.START_LAYER: "0", "Content-Type": "application/json"}
    status, body, _ = await served.post(b"[1, 2, 3]", **headers)
    assert (status, len(body)) == (200, 3 * 32)


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        (forward_headers(None), ROWS, "Start-Layer"),
        (forward_headers("x"), ROWS, "'x'"),
        (forward_headers("-1"), ROWS, "'-1'"),
        (forward_headers("15"), ROWS, "0-14"),
        (forward_headers("3", "2"), ROWS, "3-2"),
        (forward_headers("3", "29"), ROWS, "0-14"),
        (forward_headers("3", **{api.DTYPE: "int8"}), ROWS, "int8"),
        (forward_headers("3", **{api.SHAPE: "2,9"}), ROWS, "2 rows of 9"),
        (forward_headers("3", **{api.SHAPE: "99999999,8"}), ROWS, "rows,hidden"),
        (forward_headers("3", **{api.SHAPE: "0,8"}), b"", "0 rows"),
        (forward_headers("3", **{api.SHAPE: "3,8"}), ROWS, "64 bytes"),
        ({api.START_LAYER: "0", "Content-Type": "application/json"}, b"[]", "length"),
        ({api.START_LAYER: "0", "Content-Type": "application/json"}, b"[-1]", ">= 0"),
        ({api.START_LAYER: "0", "Content-Type": "application/json"}, b"[1", "JSON"),
    ],
)
async def test_a_bad_forward_is_a_400_that_says_why(
    served: Served, headers: dict[str, str], body: bytes, said: str
) -> None:
    status, answer, _ = await served.post(body, **headers)
    assert status == 400
    assert said in answer.decode()


async def test_status_health_and_metrics(served: Served) -> None:
    async with served.http.get(served.url + api.STATUS) as answer:
        status = await answer.json()
    assert (status["node_id"], status["epoch"], status["loading_done_bytes"]) == ("wallet01.0-14", 3, 5)
    async with served.http.get(served.url + api.HEALTH) as answer:
        assert (await answer.json())["status"] == "loading"
    async with served.http.get(served.url + api.METRICS) as answer:
        assert "meshnet_node_forward_steps 0.0" in await answer.text()
