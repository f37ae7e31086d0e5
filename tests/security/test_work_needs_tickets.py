"""Nodes beyond loopback: a ring of real nodes that works for tickets alone, from peers that prove their wallets."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.identity import WalletKey, make_wallet_key
from daemons.kit.link import Links
from daemons.kit.proof import Prover
from daemons.kit.web import Site, make_app, serve
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.trust import Trust
from meshnet.domain.chat import ChatMessage, GenerationRequest, Sampling
from meshnet.domain.errors import NodeFailed
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet, make_node_id
from meshnet.domain.shards import parse_shard
from meshnet.domain.tickets import CLOCK_SKEW_S, RouteTicket, TicketHop
from meshnet.wire import api
from meshnet.wire.hello import sign_dial
from meshnet.wire.messages import Delta, Failed, Finished, Generate, Hello, HopMessage, Open
from meshnet.wire.tickets import sign_ticket
from tests.mesh.fake_engine import FakeCodec, FakeEngine, expected_text, facts, prompt_ids
from tests.mesh.ring import QUICK

WAIT_S = 20.0
PROMPT = "who may work here"


def draw() -> str:
    return secrets.token_hex(16)


@dataclass
class Worker:
    key: WalletKey
    node: Node
    site: Site
    shard: str

    @property
    def node_id(self) -> str:
        return self.node.identity.node_id

    def hop(self) -> HopMessage:
        shard = parse_shard(self.shard)
        return HopMessage(self.node_id, self.site.url, shard.start, shard.end, 1)


@dataclass
class Ring:
    """Two nodes that require proofs and tickets, and a tracker that they know."""

    folder: Path
    http: aiohttp.ClientSession
    workers: list[Worker] = field(default_factory=list)
    got: list[Delta] = field(default_factory=list)
    end: asyncio.Future[Finished | Failed] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def key(self, name: str) -> WalletKey:
        seed = name.encode().ljust(32, b"\0")
        return make_wallet_key(Ed25519PrivateKey.from_private_bytes(seed), self.folder / f"{name}.tls")

    async def add(self, name: str, shard: str) -> None:
        key, model, held = self.key(name), facts(), parse_shard(shard)
        holding = Holding(
            make_node_id(key.wallet, held),
            f"boot-{name}",
            model.model_key,
            model.revision,
            held,
            model.n_layers,
            model.hidden_size,
            model.context_length,
            model.dtype,
        )
        trust = Trust(time.time, required=True)
        trust.take_tracker(self.key("tracker").wallet)
        prover = Prover(key, trust.trackers, time.monotonic, time.time, draw, required=True)
        node = Node(Identity(holding, epoch=1), self.http, QUICK, trust=trust, prover=prover)
        site = await serve(make_app([web.get(api.LINK, node.links.accept)], 1 << 20), "127.0.0.1", 0)
        await node.load(lambda: (FakeEngine(held), FakeCodec() if held.start == 0 else None))
        node.ready = True
        self.workers.append(Worker(key, node, site, shard))

    def links(self, name: str, hello: Hello, proves: bool = True) -> Links:
        """Links of somebody who holds the key ``name``."""
        prover = Prover(self.key(name), frozenset, time.monotonic, time.time, draw, required=True) if proves else None
        return Links(lambda: hello, self._on_message, lambda link: None, self.http, time.monotonic, prover)

    def _on_message(self, link: object, message: object) -> None:
        if isinstance(message, Delta):
            self.got.append(message)
        elif isinstance(message, Finished | Failed) and not self.end.done():
            self.end.set_result(message)

    def ticket(self, signer: str = "tracker", **changes: object) -> str:
        model = facts()
        hops = tuple(TicketHop(NodeId(h.node_id), h.start_layer, h.end_layer) for h in (w.hop() for w in self.workers))
        ticket = RouteTicket(
            self.key(signer).wallet,
            CallId("call-1"),
            0,
            ModelKey(model.model_key),
            Revision(model.revision),
            hops,
            time.time() + 60,
        )
        return sign_ticket(self.key(signer).private, replace(ticket, **changes))

    def generate(self, ticket: str) -> Generate:
        model = facts()
        return Generate(
            session=7,
            attempt=0,
            call_id="call-1",
            model_key=model.model_key,
            revision=model.revision,
            dtype="float32",
            hops=tuple(worker.hop() for worker in self.workers),
            request=GenerationRequest((ChatMessage("user", PROMPT),), Sampling(temperature=0), max_tokens=8),
            deadline_s=WAIT_S,
            ticket=ticket,
        )

    async def ask(self, message: Generate, name: str = "tracker") -> Finished | Failed:
        links = self.links(name, tracker_hello())
        try:
            head = self.workers[0]
            (await links.to(head.node_id, head.site.url)).post(message)
            return await asyncio.wait_for(asyncio.shield(self.end), WAIT_S)
        finally:
            await links.close()

    @property
    def passes(self) -> list[int]:
        return [worker.node.worker.forward_steps for worker in self.workers]

    async def close(self) -> None:
        for worker in self.workers:
            await worker.node.close()
            await worker.site.close()


def tracker_hello() -> Hello:
    return Hello(peer_id="tracker.t1", role="tracker", boot="boot-tracker", wire_version=api.WIRE_VERSION)


def node_hello(wallet: str, shard: str = "0-14") -> Hello:
    return Hello(peer_id=f"{wallet}.{shard}", role="node", boot="boot-script", wire_version=api.WIRE_VERSION)


@pytest.fixture
async def ring(tmp_path: Path) -> AsyncIterator[Ring]:
    async with aiohttp.ClientSession() as http:
        ring = Ring(tmp_path, http)
        await ring.add("head", "0-14")
        await ring.add("tail", "15-29")
        try:
            yield ring
        finally:
            await ring.close()


async def test_with_its_ticket_a_call_is_answered(ring: Ring) -> None:
    end = await ring.ask(ring.generate(ring.ticket()))
    assert isinstance(end, Finished), end
    assert "".join(delta.text for delta in ring.got) == expected_text(prompt_ids(PROMPT), 8)
    assert all(ring.passes)


FORGED: dict[str, tuple[str, Callable[[Ring], str]]] = {
    "none": ("no_ticket", lambda ring: ""),
    "expired": ("ticket_expired", lambda ring: ring.ticket(expires=time.time() - CLOCK_SKEW_S - 1)),
    "another call's": ("ticket_call", lambda ring: ring.ticket(call_id=CallId("call-2"))),
    "another attempt's": ("ticket_call", lambda ring: ring.ticket(attempt=1)),
    "other layers": (
        "ticket_layers",
        lambda ring: ring.ticket(
            hops=(
                TicketHop(NodeId(ring.workers[0].node_id), 0, 10),
                TicketHop(NodeId(ring.workers[1].node_id), 11, 29),
            )
        ),
    ),
    "other hops": (
        "ticket_hop",
        lambda ring: ring.ticket(
            hops=(
                TicketHop(NodeId(ring.workers[0].node_id), 0, 14),
                TicketHop(NodeId("b" * 20 + ".15-29"), 15, 29),
            )
        ),
    ),
    "without this node": ("ticket_hop", lambda ring: ring.ticket(hops=(TicketHop(NodeId("b" * 20 + ".0-29"), 0, 29),))),
    "other weights": ("epoch_changed", lambda ring: ring.ticket(revision=Revision("cd" * 8))),
    "another tracker's": ("bad_ticket", lambda ring: ring.ticket("mallory")),
    "nonsense": ("bad_ticket", lambda ring: "a.b.c"),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_another_ticket_runs_no_forward_pass(ring: Ring, forged: str) -> None:
    code, make = FORGED[forged]
    end = await ring.ask(ring.generate(make(ring)))
    assert isinstance(end, Failed) and end.code == code
    assert ring.passes == [0, 0]


async def test_a_hop_serves_nobody_but_its_predecessor(ring: Ring) -> None:
    """A member of the mesh, with a good ticket of another's call, goes to the tail itself."""
    mallory, tail, model = ring.key("mallory"), ring.workers[1], facts()
    hello = node_hello(mallory.wallet)
    links = ring.links("mallory", hello)
    frame = Open(
        session=7,
        attempt=0,
        call_id="call-1",
        model_key=model.model_key,
        revision=model.revision,
        dtype="float32",
        hops=(HopMessage(hello.peer_id, "http://127.0.0.1:9", 0, 14), tail.hop()),
        index=1,
        reserve_tokens=10,
        sampling=Sampling(temperature=0),
        prompt_ids=(1, 2, 3),
        ticket=ring.ticket(),
    )
    (await links.to(tail.node_id, tail.site.url)).post(frame)
    end = await asyncio.wait_for(asyncio.shield(ring.end), WAIT_S)
    await links.close()
    assert isinstance(end, Failed) and end.code == "ticket_peer"
    assert ring.passes == [0, 0]


# HELLO.


async def refused(links: Links, worker: Worker) -> None:
    with pytest.raises(NodeFailed, match=r"refused|closed|before its HELLO"):
        await links.to(worker.node_id, worker.site.url)
    await links.close()
    assert len(worker.node.links) == 0


async def test_who_proves_nothing_gets_no_link(ring: Ring) -> None:
    await refused(ring.links("x", node_hello("a" * 20), proves=False), ring.workers[0])


async def test_another_wallets_id_gets_no_link(ring: Ring) -> None:
    await refused(ring.links("mallory", node_hello(ring.key("tail").wallet, "15-29")), ring.workers[0])


async def test_a_tracker_that_we_did_not_join_gets_no_link(ring: Ring) -> None:
    await refused(ring.links("mallory", tracker_hello()), ring.workers[0])


class Replayed(Prover):
    """Sends what it was given, whatever is asked."""

    def __init__(self, hello: Hello, key: WalletKey) -> None:
        super().__init__(key, frozenset, time.monotonic, time.time, draw, required=True)
        self.hello = hello

    def dial(self, hello: Hello, target_id: str) -> Hello:
        return self.hello


@pytest.mark.parametrize(
    "bad", ["replayed", "for another", "old", "future", "changed"], ids=lambda text: text.replace(" ", "_")
)
async def test_a_hello_is_good_once_now_and_here(ring: Ring, bad: str) -> None:
    key, worker = ring.key("mallory"), ring.workers[0]
    times = {"old": -61.0, "future": 61.0}
    target = worker.node_id if bad != "for another" else ring.workers[1].node_id
    hello = sign_dial(key.private, node_hello(key.wallet), target, now=time.time() + times.get(bad, 0.0), nonce=draw())
    if bad == "changed":
        hello = msgspec.structs.replace(hello, boot="another-boot")
    if bad == "replayed":
        first = links_with(ring, Replayed(hello, key))
        await first.to(worker.node_id, worker.site.url)
        await first.close()
        async with asyncio.timeout(WAIT_S):
            while len(worker.node.links):  # noqa: ASYNC110 (the far end closes by itself)
                await asyncio.sleep(0.005)
    await refused(links_with(ring, Replayed(hello, key)), worker)


def links_with(ring: Ring, prover: Prover) -> Links:
    hello = node_hello(ring.key("mallory").wallet)
    return Links(lambda: hello, lambda link, message: None, lambda link: None, ring.http, time.monotonic, prover)


async def test_whom_we_dial_must_prove_its_wallet(ring: Ring) -> None:
    """Somebody who answers at a node's address with its id but without its key."""
    tail = ring.workers[1]
    impostor = ring.links("mallory", node_hello(Wallet(tail.node_id.split(".")[0]), "15-29"))
    site = await serve(make_app([web.get(api.LINK, impostor.accept)], 1 << 20), "127.0.0.1", 0)
    dialler = ring.links("carl", node_hello(ring.key("carl").wallet))
    with pytest.raises(NodeFailed, match="has the key of"):
        await dialler.to(tail.node_id, site.url)
    for links in (dialler, impostor):
        await links.close()
    await site.close()
