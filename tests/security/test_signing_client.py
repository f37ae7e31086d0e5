"""The typed client signs for the tracker process that answers, and finds the next one after a restart."""

from __future__ import annotations

import secrets
import time

import pytest
from aiohttp import web

from daemons.kit.signing import RequestSigner
from daemons.kit.web import make_app, serve
from meshnet.client.http import Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import Forbidden, InvalidRequest, NotFound
from meshnet.wire.messages import HeartbeatRequest
from tests.tracker.running import claim, node_id_of, private_key, run_tracker


def signing(http, url: str, number: int) -> TrackerClient:
    signer = RequestSigner(private_key(number), time.time, lambda: secrets.token_hex(16))
    return TrackerClient(http, url, Credentials(signer=signer))


async def test_a_node_registers_beats_and_leaves_by_its_signature() -> None:
    async with run_tracker() as running, open_http() as http:
        mine = signing(http, running.url, 1)
        answer = await mine.register(claim(1, 0, 29))
        assert (await mine.heartbeat(answer.node_id, HeartbeatRequest(epoch=1))).epoch == 1
        await mine.leave(answer.node_id, 1)
        assert (await running.client.nodes()).nodes == ()


async def test_nobody_registers_replaces_or_removes_anothers_node() -> None:
    async with run_tracker() as running, open_http() as http:
        await running.client.register(claim(1, 0, 29))
        before = (await running.client.nodes()).nodes
        mallory = signing(http, running.url, 2)
        forged = (
            mallory.register(claim(1, 0, 29, "http://127.0.0.1:10")),
            mallory.heartbeat(node_id_of(1, 0, 29), HeartbeatRequest(epoch=1, state="draining")),
            mallory.leave(node_id_of(1, 0, 29), 1),
        )
        for attempt in forged:
            with pytest.raises(Forbidden) as refused:
                await attempt
            assert refused.value.code == "not_yours"
        plain = TrackerClient(http, running.url)
        with pytest.raises(Forbidden) as unsigned:
            await plain.register(claim(1, 0, 29))
        assert unsigned.value.code == "unsigned"
        after = (await running.client.nodes()).nodes
        assert [(n.node_id, n.url, n.epoch, n.state) for n in after] == [
            (n.node_id, n.url, n.epoch, n.state) for n in before
        ]


async def test_after_a_restart_the_signer_signs_for_the_new_process() -> None:
    async with run_tracker() as first, open_http() as http:
        signer = RequestSigner(private_key(1), time.time, lambda: secrets.token_hex(16))
        await TrackerClient(http, first.url, Credentials(signer=signer)).register(claim(1, 0, 29))
    async with run_tracker(boot="another-boot") as second, open_http() as http:
        again = TrackerClient(http, second.url, Credentials(signer=signer))
        with pytest.raises(NotFound):
            await again.heartbeat(node_id_of(1, 0, 29), HeartbeatRequest(epoch=1))
        await again.register(claim(1, 0, 29))


async def test_a_refusal_for_another_reason_is_not_tried_again() -> None:
    asked: list[str] = []

    async def refuse(request):
        asked.append(request.path)
        raise Forbidden("no", code="wrong_scope")

    site = await serve(make_app([web.post("/v1/nodes", refuse)], 1 << 20), "127.0.0.1", 0)
    async with open_http() as http:
        with pytest.raises(Forbidden):
            await signing(http, site.url, 1).register(claim(1, 0, 29))
    await site.close()
    assert asked == ["/v1/nodes"]


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254:80", "http://100.100.100.200:1", "relay://169.254.1.1:1/" + "a" * 20]
)
async def test_no_node_registers_at_a_metadata_address(url: str) -> None:
    async with run_tracker() as running:
        with pytest.raises(InvalidRequest) as refused:
            await running.client.register(claim(1, 0, 29, url))
        assert refused.value.code == "bad_address"
        assert (await running.client.nodes()).nodes == ()


@pytest.mark.parametrize("field", ["url", "direct_url"])
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/admin/reboot",
        "http://127.0.0.1:1//",
        "http://127.0.0.1:1?now=1",
        "http://127.0.0.1:1/#",
        "http://anna:secret@127.0.0.1:1",
        "http://127.0.0.1:1@127.0.0.2:2",
        "http://127.0.0.1:1\\x",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:",
        "relay://127.0.0.1:1/" + "a" * 20 + "?x=1",
    ],
)
async def test_an_address_is_a_place_and_nothing_else(field: str, url: str) -> None:
    async with run_tracker() as running:
        with pytest.raises(InvalidRequest) as refused:
            await running.client.register(claim(1, 0, 29, **{"url": "http://127.0.0.1:1", field: url}))
        assert refused.value.param in ("url", "direct_url")
        assert (await running.client.nodes()).nodes == ()
