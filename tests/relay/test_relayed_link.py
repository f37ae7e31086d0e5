"""A link through a relay is the same link: aiohttp on both ends, TLS pinned to wallets inside the splice."""

from __future__ import annotations

import asyncio
from random import Random

import aiohttp
import pytest
from msgspec.structs import replace
from relay_testing import Mesh, tapped, until
from yarl import URL

from daemons.kit.splice import reach
from daemons.kit.tls import encode_certificate, pinned_context
from daemons.node.uplink import Uplink
from meshnet.wire.relay import dialled_url, parse_http_host, parse_relay_url


async def test_websocket_and_http_reach_a_node_that_listens_nowhere(mesh: Mesh) -> None:
    async with mesh.relay() as relay, mesh.node("anna", relay) as node, mesh.session("carl") as http:
        url = dialled_url(node.address().url)
        async with http.ws_connect(url + "/v1/link", max_msg_size=1 << 26, compress=0) as socket:
            for size in (1, 64 * 1024, 3_000_000):
                await socket.send_bytes(b"x" * size)
                assert (await socket.receive()).data == b"x" * size
            assert len(relay.desk.splices) == 1
        async with http.get(url + "/whoami") as response:
            assert await response.text() == "anna"
    assert node.seen == [mesh.key("carl").wallet]


async def test_two_nodes_at_different_relays_link_both_ways(mesh: Mesh) -> None:
    async with (
        mesh.relay("relay-a") as relay_a,
        mesh.relay("relay-b") as relay_b,
        mesh.node("anna", relay_a) as anna,
        mesh.node("bert", relay_b) as bert,
        mesh.session("anna") as from_anna,
        mesh.session("bert") as from_bert,
    ):
        for http, target, name in ((from_anna, bert, "bert"), (from_bert, anna, "anna")):
            async with http.get(dialled_url(target.address().url) + "/whoami") as response:
                assert await response.text() == name
    assert bert.seen == [mesh.key("anna").wallet]
    assert anna.seen == [mesh.key("bert").wallet]


async def test_pools_keep_two_nodes_of_one_relay_apart(mesh: Mesh) -> None:
    async with (
        mesh.relay() as relay,
        mesh.node("anna", relay) as anna,
        mesh.node("bert", relay) as bert,
        mesh.session("carl") as http,
    ):
        for node, name in ((anna, "anna"), (bert, "bert"), (anna, "anna")):
            async with http.get(dialled_url(node.address().url) + "/whoami") as response:
                assert await response.text() == name


async def test_second_relay_serves_when_the_first_is_gone(mesh: Mesh) -> None:
    async with (
        mesh.relay("relay-b") as relay_b,
        mesh.relay("relay-a") as relay_a,
        mesh.node("anna", relay_a, relay_b) as node,
        mesh.session("carl") as http,
    ):
        first, second = node.address(0), node.address(1)
        socket = await http.ws_connect(dialled_url(first.url) + "/v1/link")
        await relay_a.stop()
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        async with http.get(dialled_url(second.url) + "/whoami") as response:
            assert await response.text() == "anna"


async def test_a_relay_that_passes_off_another_key_is_refused(mesh: Mesh) -> None:
    """A relay in the middle needs a certificate of its own, and the caller knows whose it must be."""
    async with mesh.relay() as relay, mesh.node("anna", relay) as anna, mesh.session("carl") as http:
        seat = relay.seats.get(anna.key.wallet)
        assert seat is not None
        seat.certificate = encode_certificate(mesh.key("mallory").certificate)
        with pytest.raises(aiohttp.ClientConnectorError, match="not " + anna.key.wallet):
            await http.get(dialled_url(anna.address().url) + "/whoami")
    assert anna.seen == []


async def test_a_caller_without_the_key_of_its_certificate_is_refused(mesh: Mesh) -> None:
    """The node asks for the certificate's key in TLS: a stolen ticket and certificate open nothing."""
    async with mesh.relay() as relay, mesh.node("anna", relay) as node:
        sock, certificate = await reach(node.address(), mesh.key("carl"), mesh.link_ticket("carl", "anna"))
        context = pinned_context("client", mesh.key("mallory").tls_file, certificate)
        with pytest.raises((ConnectionError, OSError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname="")
            try:
                writer.write(b"GET /whoami HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readexactly(1)
            finally:
                writer.close()
    assert node.seen == []


async def test_no_byte_of_a_canary_is_in_clear_through_the_relay(mesh: Mesh) -> None:
    """All bytes of the caller's line to the relay, both ways, as a packet capture would have them."""
    carried = bytearray()
    canary = b"the quick brown canary sings in clear text"
    async with (
        mesh.relay() as relay,
        mesh.node("anna", relay) as node,
        tapped(relay.splice_port, carried) as port,
        mesh.session("carl") as http,
    ):
        url = dialled_url(replace(node.address(), port=port).url)
        async with http.ws_connect(url + "/v1/link") as socket:
            await socket.send_bytes(canary * 100)
            assert (await socket.receive()).data == canary * 100
    assert len(carried) > 2 * len(canary) * 100
    assert canary not in bytes(carried)
    assert b"/v1/link" not in bytes(carried)


async def test_uplink_comes_back_when_its_relay_returns(mesh: Mesh) -> None:
    waits: list[float] = []

    async def noted(wait_s: float) -> None:
        waits.append(wait_s)
        await asyncio.sleep(0.01)

    async with mesh.relay() as relay:
        port = int(relay.url.rsplit(":", 1)[1])
        async with mesh.node("anna", relay, sleep=noted) as node, mesh.session("carl") as http:
            await relay.stop()
            await until(lambda: node.uplinks[0].address is None and len(waits) >= 2)
            async with mesh.relay(port=port):
                await until(lambda: node.uplinks[0].address is not None)
                async with http.get(dialled_url(node.address().url) + "/whoami") as response:
                    assert await response.text() == "anna"
    assert 2.0 <= waits[0] <= 17.0, "a stopping relay says when to come back"
    assert waits[1] <= 0.5, "and then full jitter begins small"


async def test_back_off_is_full_jitter_and_spreads_fifty_nodes(mesh: Mesh) -> None:
    def waits(seed: int) -> list[float]:
        uplink = Uplink(
            "ws://127.0.0.1:1",
            mesh.key("anna"),
            "anna",
            set,
            asyncio.Protocol,
            http,
            Random(seed),
            mesh.clock.now,
            mesh.clock.wall,
        )
        return [uplink.back_off() for _ in range(8)]

    async with aiohttp.ClientSession() as http:
        tables = [waits(seed) for seed in range(50)]
    for row in tables:
        assert all(0 <= wait <= min(30.0, 0.5 * 2**n) for n, wait in enumerate(row))
    seventh = sorted(row[7] for row in tables)
    busiest = max(sum(low <= wait < low + 1 for wait in seventh) for low in range(30))
    assert busiest < 10


@pytest.mark.parametrize(
    "url", ["relay://example.org:7091/abcdefgh", "relay://127.0.0.1:1/abcdefgh23", "relay://[fd00::1:2]:7091/abcdefgh"]
)
def test_relay_urls_survive_the_way_through_http(url: str) -> None:
    address = parse_relay_url(url)
    assert address.url == url
    host = URL(dialled_url(url) + "/v1/link").raw_host
    assert host is not None
    assert parse_http_host(host) == address
