"""A node asked by its tracker whether it reaches another one, over real links and sockets."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.dial import MeshConnector
from daemons.kit.guard import Guard
from daemons.kit.identity import WalletKey, make_wallet_key
from daemons.kit.link import Links
from daemons.kit.proof import Prover
from daemons.kit.tasks import Tasks
from daemons.kit.tls import own_server
from daemons.kit.web import Site, serve
from daemons.node.app import node_app, status_of
from daemons.node.dialback import DialBack
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.trust import Trust
from daemons.tracker.witnesses import Witnesses
from meshnet.domain.errors import FrameError
from meshnet.domain.ids import ModelKey, NodeId, Revision, make_node_id
from meshnet.domain.keys import KeyRing
from meshnet.domain.nodes import Node as NodeRecord
from meshnet.domain.shards import Shard
from meshnet.wire import access, frames
from meshnet.wire.messages import Dial, Dialled, Hello
from meshnet.wire.relay import RelayAddress

SHARD = Shard(0, 9)


def key_of(folder: Path, name: str) -> WalletKey:
    seed = name.encode().ljust(32, b"\0")
    return make_wallet_key(Ed25519PrivateKey.from_private_bytes(seed), folder / f"{name}.tls")


def prover_of(key: WalletKey, trust: Trust | None = None) -> Prover:
    trackers = trust.trackers if trust is not None else frozenset
    return Prover(key, trackers, time.monotonic, time.time, lambda: secrets.token_hex(16), required=True)


class Place:
    """Nodes that require proofs, and their tracker's questions."""

    def __init__(self, folder: Path, http: aiohttp.ClientSession) -> None:
        self.folder, self.http = folder, http
        self.tracker = key_of(folder, "tracker")
        self.open: list[tuple[Node, Site]] = []
        self.witnesses = Witnesses(self.hello, http, time.monotonic, prover_of(self.tracker))

    def hello(self) -> Hello:
        return Hello(peer_id="tracker.t1", role="tracker", boot="boot-tracker", wire_version=1)

    async def node(self, name: str) -> NodeRecord:
        key = key_of(self.folder, name)
        node_id = make_node_id(key.wallet, SHARD)
        trust = Trust(time.time, required=True)
        trust.take_tracker(self.tracker.wallet)
        holding = Holding(node_id, f"boot-{name}", "fake", "0123456789abcdef", SHARD, 10, 8, 2048, "float32")
        node = Node(Identity(holding, epoch=1), self.http, trust=trust, prover=prover_of(key, trust))
        site = await serve(node_app(node, name, lambda: status_of(node, name, (1, 1), (), True)), "127.0.0.1", 0)
        self.open.append((node, site))
        return NodeRecord(
            node_id=node_id,
            wallet=key.wallet,
            url=site.url,
            model_key=ModelKey("fake"),
            revision=Revision("0123456789abcdef"),
            n_layers=10,
            shard=SHARD,
            dtype="float32",
            hidden_size=8,
            context_length=2048,
            name=name,
        )

    async def close(self) -> None:
        await self.witnesses.close()
        for node, site in self.open:
            await node.close()
            await site.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with aiohttp.ClientSession() as http:
        place = Place(tmp_path, http)
        yield place
        await place.close()


async def test_a_witness_says_what_it_reaches(place: Place) -> None:
    witness, other = await place.node("witness"), await place.node("other")
    answer = await place.witnesses.ask(witness, other.node_id, other.url)
    assert answer == Dialled(other.node_id, other.url, True)


async def test_a_witness_says_why_not(place: Place) -> None:
    witness, other = await place.node("witness"), await place.node("other")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        answer = await place.witnesses.ask(witness, other.node_id, url)
    assert answer is not None and not answer.works and url in answer.why


async def test_another_node_at_that_address_is_no_answer(place: Place) -> None:
    """A private address means another machine behind each router."""
    witness, other = await place.node("witness"), await place.node("other")
    answer = await place.witnesses.ask(witness, NodeId(f"{'z' * 20}.0-9"), other.url)
    assert answer is not None and not answer.works and other.wallet in answer.why


async def test_a_path_that_an_address_brings_along_is_not_asked_for() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    site = await serve(app, "127.0.0.1", 0)
    tasks = Tasks("test")
    async with aiohttp.ClientSession() as http:
        for extra in ("/reboot?now=1&x=", "?x=", "#x", "//"):
            why = await DialBack(http, tasks).look(Dial(NodeId(f"{'z' * 20}.0-9"), site.url + extra))
            assert "no node's address" in why
    await tasks.close()
    await site.close()
    assert asked == []


async def test_what_a_stranger_answers_paints_nobodys_terminal(place: Place) -> None:
    """What it says is quoted, without what a terminal would obey."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "wallet": "\x1b[2J\x07\n owned"})

    witness = await place.node("witness")
    app = web.Application()
    app.router.add_get("/healthz", answer)
    site = await serve(app, "127.0.0.1", 0)
    found = await place.witnesses.ask(witness, NodeId(f"{'z' * 20}.0-9"), site.url)
    await site.close()
    assert found is not None and not found.works and "owned" in found.why and found.why.isprintable()


@pytest.mark.parametrize("why", ["\x1b[2J\x1b]0;owned\x07", "a\nfake line", "a\n", "\u202eabc", "x" * 513])
def test_no_tracker_takes_a_reason_that_could_paint_its_terminal(why: str) -> None:
    with pytest.raises(FrameError):
        frames.decode(frames.encode_control(Dialled(NodeId(f"{'z' * 20}.0-9"), "http://127.0.0.1:1", False, why)))


async def test_over_tls_the_address_names_the_key_that_must_answer(place: Place) -> None:
    """As in an exposed mesh: the witness dials with its own connector, the node listens with its wallet's key."""
    witness, key, other = (key_of(place.folder, name) for name in ("witness", "other", "third"))
    await place.node("other")
    node, _ = place.open[-1]
    guard = Guard("exposed", access.NODE, KeyRing, time.monotonic, time.time, wallet=key.wallet)
    app = node_app(node, "other", lambda: status_of(node, "other", (1, 1), (), True), guard=guard)
    secure = await serve(app, "127.0.0.1", 0, own_server(key.tls_file))
    connector = MeshConnector(witness, lambda wallet: None)
    async with aiohttp.ClientSession(connector=connector) as http:
        tasks = Tasks("test")
        dial_back = DialBack(http, tasks)
        node_id = node.identity.node_id
        right, wrong = (RelayAddress("127.0.0.1", secure.port, k.wallet, "tls").url for k in (key, other))
        assert await dial_back.look(Dial(node_id, right)) == ""
        assert other.wallet in await dial_back.look(Dial(node_id, wrong))
        await tasks.close()
    await secure.close()


async def test_a_witness_that_is_gone_says_nothing(place: Place) -> None:
    witness = await place.node("witness")
    node, site = place.open.pop()
    await node.close()
    await site.close()
    assert await place.witnesses.ask(witness, witness.node_id, witness.url) is None


async def test_nobody_but_its_tracker_sends_a_node_dialling(place: Place) -> None:
    witness, other = await place.node("witness"), await place.node("other")
    answers: list[object] = []
    stranger = key_of(place.folder, "stranger")
    hello = Hello(peer_id=f"{stranger.wallet}.0-9", role="node", boot="boot-strange", wire_version=1)
    links = Links(
        lambda: hello,
        lambda link, message: answers.append(message),
        lambda link: None,
        place.http,
        time.monotonic,
        prover_of(stranger),
    )
    link = await links.to(witness.node_id, witness.url)
    link.post(Dial(other.node_id, other.url))
    await link.closed.wait()
    assert answers == []
    await links.close()
