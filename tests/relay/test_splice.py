"""The splice port, raw: who gets spliced, who does not, and that pairs do not feel each other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from relay_testing import NOW, Mesh, until

from daemons.kit.identity import WalletKey
from daemons.kit.splice import reach, take
from daemons.kit.tls import encode_certificate
from daemons.relay.app import Relay
from meshnet.domain.errors import Unreachable
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet
from meshnet.domain.tickets import RouteTicket, TicketHop
from meshnet.wire import relay as wire
from meshnet.wire.tickets import sign_ticket


class Seated:
    """The control connection of a node, by hand: it takes every link it is told of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, relay: Relay) -> None:
        self.socket = socket
        self._relay = relay

    async def wanted(self) -> wire.Wanted:
        return wire.decode((await self.socket.receive()).data, wire.Wanted)

    async def take(self, token: str | None = None) -> socket.socket:
        return await take("127.0.0.1", self._relay.splice_port, token or (await self.wanted()).token)


@contextlib.asynccontextmanager
async def seated(relay: Relay, key: WalletKey, proof: bytes | None = None) -> AsyncIterator[Seated]:
    async with aiohttp.ClientSession() as http, http.ws_connect(relay.url + wire.CONTROL) as control:
        challenge = wire.decode((await control.receive()).data, wire.Challenge)
        signed = proof or key.private.sign(wire.seat_proof(challenge, key.public_key))
        await control.send_str(wire.encode(prove(key, signed)).decode())
        answer = wire.decode((await control.receive()).data, wire.ToNode)  # type: ignore[arg-type]
        if isinstance(answer, wire.Refused):
            raise Unreachable(answer.message, code=answer.code)
        yield Seated(control, relay)


def prove(key: WalletKey, proof: bytes) -> wire.Prove:
    return wire.Prove(
        public_key=key.public_key.hex(),
        certificate=encode_certificate(key.certificate),
        proof=proof.hex(),
        name="by hand",
    )


async def pair(mesh: Mesh, relay: Relay, node: Seated, target: str) -> tuple[socket.socket, socket.socket]:
    """Two raw sockets that are spliced: the caller's and the node's."""
    address = wire.RelayAddress("127.0.0.1", relay.splice_port, mesh.key(target).wallet)
    (caller, _), there = await asyncio.gather(
        reach(address, mesh.key("carl"), mesh.link_ticket("carl", target)), node.take()
    )
    return caller, there


async def asked(mesh: Mesh, relay: Relay, ticket: str, target: str = "anna", caller: str = "carl") -> str:
    """The code with which the relay refuses this, or "spliced"."""
    address = wire.RelayAddress("127.0.0.1", relay.splice_port, mesh.key(target).wallet)
    try:
        sock, _ = await reach(address, mesh.key(caller), ticket)
    except Unreachable as error:
        return error.code
    sock.close()
    return "spliced"


async def exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(sock, 1 << 18)
        assert part, f"ended after {len(data)} of {count}"
        data += part
    return bytes(data)


async def test_every_byte_arrives_both_ways_and_a_half_close_too(mesh: Mesh) -> None:
    loop = asyncio.get_running_loop()
    there_bytes, back_bytes = bytes(range(256)) * 40_000, bytes(range(255, -1, -1)) * 40_000
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        caller, there = await pair(mesh, relay, node, "anna")
        with caller, there:
            got = await asyncio.gather(
                exactly(there, len(there_bytes)),
                exactly(caller, len(back_bytes)),
                loop.sock_sendall(caller, there_bytes),
                loop.sock_sendall(there, back_bytes),
            )
            assert got[:2] == [there_bytes, back_bytes]
            caller.shutdown(socket.SHUT_WR)
            assert await loop.sock_recv(there, 1) == b""
            await loop.sock_sendall(there, b"still open")
            assert await exactly(caller, 10) == b"still open"
        await until(lambda: not relay.desk.splices)


async def test_a_stalled_consumer_stops_its_own_pair_and_no_other(mesh: Mesh) -> None:
    loop = asyncio.get_running_loop()
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        stuck_caller, stuck_there = await pair(mesh, relay, node, "anna")
        caller, there = await pair(mesh, relay, node, "anna")
        with stuck_caller, stuck_there, caller, there:

            async def trips() -> float:
                began = time.perf_counter()
                for _ in range(300):
                    await loop.sock_sendall(caller, b"x" * 512)
                    await loop.sock_sendall(there, await exactly(there, 512))
                    await exactly(caller, 512)
                return time.perf_counter() - began

            alone = await trips()
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while True:
                        await loop.sock_sendall(stuck_caller, b"y" * 65536)
                        sent += 65536
            assert sent < 64 << 20, "back-pressure reached the sender"
            assert await trips() < 5 * alone + 0.2
            held = sum(end._transport.get_write_buffer_size() for s in relay.desk.splices for end in (s.caller, s.node))
            assert held < 2 << 20


async def test_no_ticket_no_splice(mesh: Mesh) -> None:
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")):
        assert await asked(mesh, relay, "") == "bad_ticket"
        assert await asked(mesh, relay, "e30.e30.e30") == "bad_ticket"
        assert await asked(mesh, relay, mesh.link_ticket("carl", "anna", by="mallory")) == "bad_ticket"
        assert await asked(mesh, relay, mesh.link_ticket("carl", "anna", expires_in=-61)) == "ticket_expired"
        assert await asked(mesh, relay, mesh.link_ticket("carl", "bert")) == "ticket_peer"
        assert await asked(mesh, relay, mesh.link_ticket("carl", "anna"), caller="mallory") == "ticket_peer"
        ticket = mesh.link_ticket("carl", "anna")
        payload, key, signature = ticket.split(".")
        assert await asked(mesh, relay, f"{payload}.{key}.{signature[:-4]}AAAA") == "bad_ticket"
        assert await asked(mesh, relay, mesh.link_ticket("carl", "bert"), target="bert") == "no_seat"
        assert not relay.desk.splices
        assert relay.desk.refused["bad_ticket"] == 4


async def test_a_route_ticket_opens_links_between_its_hops_alone(mesh: Mesh) -> None:
    hops = tuple(TicketHop(NodeId(f"{mesh.key(name).wallet}.{i}-{i}"), i, i) for i, name in enumerate(("carl", "anna")))
    tracker = mesh.key("tracker")
    ticket = sign_ticket(
        tracker.private,
        RouteTicket(tracker.wallet, CallId("call-1"), 0, ModelKey("m"), Revision("ab" * 4), hops, NOW + 10),
    )
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        assert await asked(mesh, relay, ticket, caller="mallory") == "ticket_peer"
        for caller in ("carl", "tracker"):
            code, sock = await asyncio.gather(asked(mesh, relay, ticket, caller=caller), node.take())
            sock.close()
            assert code == "spliced"


async def test_a_token_is_good_once(mesh: Mesh) -> None:
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        address = wire.RelayAddress("127.0.0.1", relay.splice_port, mesh.key("anna").wallet)
        calling = asyncio.gather(reach(address, mesh.key("carl"), mesh.link_ticket("carl", "anna")))
        token = (await node.wanted()).token
        there = await node.take(token)
        ((caller, _),) = await calling
        with caller, there:
            for used in (token, "0" * 64):
                with pytest.raises(Unreachable) as refused:
                    await node.take(used)
                assert refused.value.code == "bad_token"


async def test_a_proof_made_for_another_challenge_takes_no_seat(mesh: Mesh) -> None:
    key = mesh.key("anna")
    old = wire.Challenge(relay_id=mesh.key("relay").wallet, boot="boot" * 4, nonce="0" * 64)
    async with mesh.relay() as relay:
        with pytest.raises(Unreachable) as refused:
            async with seated(relay, key, key.private.sign(wire.seat_proof(old, key.public_key))):
                pass
        assert refused.value.code == "bad_proof"
        assert len(relay.seats) == 0


async def test_a_reach_made_for_another_connection_is_refused(mesh: Mesh) -> None:
    loop = asyncio.get_running_loop()
    key, ticket = mesh.key("carl"), mesh.link_ticket("carl", "anna")
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")):
        old = wire.Greeting(relay_id=mesh.key("relay").wallet, nonce="0" * 64)
        ask = wire.Reach(
            target=mesh.key("anna").wallet,
            ticket=ticket,
            public_key=key.public_key.hex(),
            certificate=encode_certificate(key.certificate),
            proof=key.private.sign(wire.reach_proof(old, mesh.key("anna").wallet, ticket)).hex(),
        )
        answer = await loop.run_in_executor(None, _raw, relay.splice_port, wire.framed(ask))
    assert b"bad_proof" in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff",
        b"\x00\x00",
        b"\x00\x02{}",
        b"GET / HTTP/1.1\r\n\r\n",
        wire.framed(wire.Take(token="0" * 64)) + b"more",
        b"\x00\x10" + b"[" * 16,
    ],
)
async def test_nonsense_ends_its_own_connection(mesh: Mesh, sent: bytes) -> None:
    loop = asyncio.get_running_loop()
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        answer = await loop.run_in_executor(None, _raw, relay.splice_port, sent)
        assert b"refused" in answer
        caller, there = await pair(mesh, relay, node, "anna")
        caller.close()
        there.close()


async def test_silence_and_idleness_end(mesh: Mesh) -> None:
    loop = asyncio.get_running_loop()
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node:
        silent = socket.create_connection(("127.0.0.1", relay.splice_port))
        silent.setblocking(False)
        caller, there = await pair(mesh, relay, node, "anna")
        unanswered = asyncio.ensure_future(asked(mesh, relay, mesh.link_ticket("carl", "anna")))
        await node.wanted()
        with silent, caller, there:
            mesh.clock.seconds += relay.config.handshake_s + 0.1
            relay.desk.tick()
            assert await unanswered == "node_silent"
            assert b"handshake_timeout" in await exactly(silent, 200)
            assert len(relay.desk.splices) == 1
            mesh.clock.seconds += relay.config.idle_s
            relay.desk.tick()
            with pytest.raises(ConnectionError):
                assert await loop.sock_recv(caller, 1) == b""
                raise ConnectionResetError
            await until(lambda: not relay.desk.splices)


async def test_limits_hold(mesh: Mesh) -> None:
    async with (
        mesh.relay(max_nodes_per_address=2, max_splices_per_node=1, max_waiting_per_address=3) as relay,
        seated(relay, mesh.key("anna")) as node,
        seated(relay, mesh.key("bert")),
    ):
        with pytest.raises(Unreachable, match="2 nodes at"):
            async with seated(relay, mesh.key("dora")):
                pass
        caller, there = await pair(mesh, relay, node, "anna")
        with caller, there:
            assert await asked(mesh, relay, mesh.link_ticket("carl", "anna")) == "overloaded"
        idle = [socket.create_connection(("127.0.0.1", relay.splice_port)) for _ in range(3)]
        await until(lambda: relay.desk.n_waiting == 3)
        assert await asked(mesh, relay, mesh.link_ticket("carl", "anna")) == "overloaded"
        for sock in idle:
            sock.close()


async def test_one_address_takes_no_more_than_its_share_of_splices(mesh: Mesh) -> None:
    async with (
        mesh.relay(max_splices_per_address=1) as relay,
        seated(relay, mesh.key("anna")) as anna,
        seated(relay, mesh.key("bert")),
    ):
        caller, there = await pair(mesh, relay, anna, "anna")
        assert await asked(mesh, relay, mesh.link_ticket("carl", "bert"), target="bert") == "too_many_from_address"
        caller.close()
        there.close()
        await until(lambda: not relay.desk.splices)
        async with asyncio.timeout(10):
            caller, there = await pair(mesh, relay, anna, "anna")
        caller.close()
        there.close()


async def test_open_rate_of_one_wallet_leaves_others_alone(mesh: Mesh) -> None:
    async with mesh.relay(opens_per_s=1.0, open_burst=2) as relay, seated(relay, mesh.key("anna")):
        codes = [await asked(mesh, relay, mesh.link_ticket("carl", "bert"), target="bert") for _ in range(3)]
        assert codes == ["no_seat", "no_seat", "rate_limited"]
        assert await asked(mesh, relay, mesh.link_ticket("dora", "bert"), "bert", caller="dora") == "no_seat"
        mesh.clock.seconds += 1.0
        assert await asked(mesh, relay, mesh.link_ticket("carl", "bert"), target="bert") == "no_seat"


async def test_newest_connection_of_a_wallet_has_the_seat_until_they_fight(mesh: Mesh) -> None:
    key = mesh.key("anna")
    async with contextlib.AsyncExitStack() as stack, mesh.relay() as relay:
        nodes = [await stack.enter_async_context(seated(relay, key)) for _ in range(4)]
        told = wire.decode((await nodes[0].socket.receive()).data, wire.Refused)
        assert told.code == "replaced"
        with pytest.raises(Unreachable) as refused:
            await stack.enter_async_context(seated(relay, key))
        assert refused.value.code == "duplicate_key"
        caller, there = await pair(mesh, relay, nodes[3], "anna")
        caller.close()
        there.close()
        mesh.clock.seconds += 61
        await stack.enter_async_context(seated(relay, key))


async def test_metrics_and_seats_say_who_is_here(mesh: Mesh) -> None:
    async with mesh.relay() as relay, seated(relay, mesh.key("anna")) as node, aiohttp.ClientSession() as http:
        caller, there = await pair(mesh, relay, node, "anna")
        with caller, there:
            await asyncio.get_running_loop().sock_sendall(caller, b"x" * 1000)
            await exactly(there, 1000)
            async with http.get(relay.url + wire.RELAYS) as response:
                (row,) = await response.json()
            async with http.get(relay.url + "/metrics") as response:
                text = await response.text()
    assert (row["wallet"], row["links"], row["bytes"]) == (Wallet(mesh.key("anna").wallet), 1, 1000)
    assert "meshnet_relay_bytes_total 1000" in text


def _raw(port: int, sent: bytes) -> bytes:
    """What the relay says until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(sent)
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(4096):
                data += part
        return data
