"""Audits: honest holders agree, a third one convicts whoever computes something else, and it is shown."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from daemons.kit.dial import MeshConnector
from daemons.kit.guard import Guard
from daemons.kit.identity import WalletKey, make_wallet_key
from daemons.kit.tls import own_server
from daemons.kit.web import serve, serve_also
from daemons.node.app import node_app, status_of
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.trust import Trust
from daemons.tracker.audit import Auditor
from daemons.tracker.fleet import Fleet
from daemons.tracker.seal import Seal
from meshnet.domain.audit import PROBE_ROWS, TOLERANCE, Verdict, difference, judge, probe_rows
from meshnet.domain.engine import ITEMSIZE, Rows
from meshnet.domain.ids import NodeId, make_node_id
from meshnet.domain.keys import KeyRing
from meshnet.domain.routes import Hop
from meshnet.domain.shards import parse_shard
from meshnet.wire import access
from meshnet.wire.messages import RegisterRequest
from meshnet.wire.relay import RelayAddress
from tests.failover.fleet import listen, whole
from tests.failover.live import LiveMesh, LiveNode, open_live
from tests.mesh.fake_engine import FakeCodec, FakeEngine, facts


def rows(*numbers: float) -> Rows:
    return Rows("float32", (1, len(numbers)), array("f", numbers).tobytes())


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_probe_rows_are_the_same_everywhere_and_well_formed(dtype: str) -> None:
    probe = probe_rows(8, dtype)
    assert probe.shape == (PROBE_ROWS, 8) and len(probe.data) == probe.size_bytes == PROBE_ROWS * 8 * ITEMSIZE[dtype]
    assert difference(probe, probe_rows(8, dtype)) == 0.0
    assert difference(probe, probe_rows(16, dtype)) == math.inf


def test_probe_rows_are_what_the_document_says() -> None:
    # SHA-256("probe 0") begins 16 bits at a time; checked once by hand with sha256sum.
    import hashlib

    first = int.from_bytes(hashlib.sha256(b"probe 0").digest()[:2], "little") / 32768 - 1
    assert array("f", bytes(probe_rows(8, "float32").data)).tolist()[0] == pytest.approx(first, abs=1e-7)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8), st.floats(-1e-4, 1e-4))
def test_rounding_is_no_difference(numbers: list[float], noise: float) -> None:
    largest = max(map(abs, numbers)) or 1.0
    assert difference(rows(*numbers), rows(*(n + noise * largest for n in numbers))) <= 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_infinitely_far(bad: float) -> None:
    assert difference(rows(1.0, 2.0), rows(1.0, bad)) == math.inf
    assert difference(rows(bad, 2.0), rows(1.0, 2.0)) == math.inf


def test_two_disagree_and_a_third_decides() -> None:
    good, bad = rows(1.0, 2.0), rows(2.0, 1.0)
    assert judge({"a": good, "b": good}, 1e-3).agree
    two = judge({"a": good, "b": bad}, 1e-3)
    assert (two.agree, two.culprit) == (False, None)
    assert judge({"a": good, "b": bad, "c": good}, 1e-3).culprit == "b"
    assert judge({"a": bad, "b": good, "c": good}, 1e-3).culprit == "a"
    assert judge({"a": bad, "b": good, "c": rows(9.0, 9.0)}, 1e-3).culprit is None


class Liar:
    """Adds something to what a fake engine passes on."""

    def __init__(self, engine: FakeEngine) -> None:
        inner = engine.forward

        def forward(entering, start: int, end: int) -> Rows:
            out = inner(entering, start, end)
            return Rows(out.dtype, out.shape, bytes(len(out.data)))

        engine.forward = forward  # type: ignore[method-assign]


def hop_of(mesh: LiveMesh, live: LiveNode, start: int, end: int) -> Hop:
    return Hop(NodeId(live.node_id), live.site.url, start, end, 1)


@pytest.mark.parametrize("shard", ["0-14", "15-29", "10-19"])
async def test_honest_holders_agree(tmp_path: Path, shard: str) -> None:
    start, end = (int(part) for part in shard.split("-"))
    async with open_live(tmp_path) as mesh:
        first = await mesh.add("a", shard)
        await mesh.add("b", "0-29")
        verdict = await mesh.running.tracker.auditor.audit(hop_of(mesh, first, start, end))
        assert verdict is not None and verdict.agree and verdict.worst == 0.0


async def test_liar_is_convicted_shown_counted_and_left_out(tmp_path: Path) -> None:
    async with open_live(tmp_path, audit_share=1.0) as mesh:
        await mesh.add("h", "0-14")
        tails = [await mesh.add(name, "15-29") for name in ("t1", "t2", "t3")]
        Liar(tails[1].engine)
        tracker = mesh.running.tracker
        for number in range(40):
            assert (await listen(mesh.client, f"audit {number}", 2)).text == whole(f"audit {number}", 2)
            await mesh.until(lambda: not len(tracker.auditor))
            if tracker.planner.health.state(tails[1].node.identity.holding.node_id.split(".")[0]) == "ejected":
                break
        nodes = {node.name: node for node in (await mesh.client.nodes()).nodes}
        assert {name: node.health for name, node in nodes.items()} == {
            "h": "ok",
            "t1": "ok",
            "t2": "ejected",
            "t3": "ok",
        }
        (event,) = [event for event in tracker.events.after(0) if event.kind == "audit.convicted"]
        assert event.node_id == tails[1].node_id and event.problem
        assert b'meshnet_audits_total{result="convicted"} 1.0' in tracker.metrics.text()


async def test_nobody_to_compare_with_or_no_answer_is_no_verdict(tmp_path: Path) -> None:
    async with open_live(tmp_path) as mesh:
        first = await mesh.add("a", "0-29")
        auditor = mesh.running.tracker.auditor
        assert await auditor.audit(hop_of(mesh, first, 0, 29)) is None
        other = await mesh.add("b", "0-29")
        await other.site.close()
        assert await auditor.audit(hop_of(mesh, first, 0, 29)) is None
        assert b'result="unanswered"' in mesh.running.tracker.metrics.text()


@dataclass(frozen=True, slots=True)
class Audited:
    node_id: NodeId
    engine: FakeEngine


class TlsHouse:
    """Nodes of an exposed mesh, each with a TLS door alone, and a tracker's fleet, key and connector."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.key = self._wallet("tracker")
        self.seal = Seal(self.key, time.monotonic, time.time, draw, required=True)
        self.fleet = Fleet(time.monotonic)
        self.results: list[str] = []
        self.convicted: list[NodeId] = []

    def _wallet(self, name: str) -> WalletKey:
        seed = Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"."))
        return make_wallet_key(seed, self._folder / f"{name}.tls")

    async def add(self, name: str, shard: str) -> Audited:
        key, model, held = self._wallet(name), facts(), parse_shard(shard)
        trust = Trust(time.time, required=True)
        trust.take_tracker(self.key.wallet)
        holding = Holding(
            make_node_id(key.wallet, held),
            f"boot-of-{name}",
            model.model_key,
            model.revision,
            held,
            model.n_layers,
            model.hidden_size,
            model.context_length,
            model.dtype,
        )
        http = await self._stack.enter_async_context(aiohttp.ClientSession())
        node, engine = Node(Identity(holding), http, trust=trust), FakeEngine(held)
        guard = Guard("exposed", access.NODE, KeyRing, time.monotonic, time.time, wallet=key.wallet)
        guard.opens = lambda text: trust.opens(text, key.wallet)
        site = await serve(
            node_app(node, name, lambda: status_of(node, name, (0, 0), (), True), guard=guard), "127.0.0.1", 0
        )
        port = await serve_also(site, "127.0.0.1", 0, own_server(key.tls_file))
        self._stack.push_async_callback(site.close)
        self._stack.push_async_callback(node.close)
        await node.load(lambda: (engine, FakeCodec() if held.start == 0 else None))
        self.fleet.register(
            RegisterRequest(
                wallet=key.wallet,
                public_key=key.public_key.hex(),
                name=name,
                url=RelayAddress("127.0.0.1", port, key.wallet, "tls").url,
                model_key=model.model_key,
                revision=model.revision,
                n_layers=model.n_layers,
                shard_start=held.start,
                shard_end=held.end,
                hidden_size=model.hidden_size,
                context_length=model.context_length,
                boot=holding.boot,
            )
        )
        return Audited(NodeId(node.identity.node_id), engine)

    async def audit(self, live: Audited, start: int, end: int, *, tickets: bool = True) -> Verdict | None:
        connector = MeshConnector(self.key, self.seal.link_ticket)
        async with aiohttp.ClientSession(connector=connector) as http:
            auditor = Auditor(
                self.fleet,
                http,
                Random(1),
                1.0,
                lambda kind, **fields: None,
                self.results.append,
                lambda node_id, why: self.convicted.append(node_id),
                self.seal.link_ticket if tickets else None,
            )
            try:
                lease = self.fleet.get(live.node_id)
                assert lease is not None
                return await auditor.audit(Hop(live.node_id, lease.node.url, start, end, 1))
            finally:
                await auditor.close()


def draw() -> str:
    return secrets.token_hex(16)


async def test_nodes_behind_tls_are_audited_and_a_liar_among_them_convicted(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        house = TlsHouse(tmp_path, stack)
        first = await house.add("a", "15-29")
        await house.add("b", "10-29")
        verdict = await house.audit(first, 15, 24)
        assert verdict is not None and verdict.agree and house.results == ["agreed"]
        assert await house.audit(first, 15, 24, tickets=False) is None, "without a ticket the door stays shut"
        await house.add("c", "15-29")
        Liar(first.engine)
        assert (await house.audit(first, 15, 24)) is not None
        assert house.results == ["agreed", "unanswered", "convicted"] and house.convicted == [first.node_id]


async def test_another_key_behind_the_door_is_not_believed(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        house = TlsHouse(tmp_path, stack)
        first, other = await house.add("a", "0-14"), await house.add("b", "0-14")
        lease, there = house.fleet.get(first.node_id), house.fleet.get(other.node_id)
        assert lease is not None and there is not None
        url = there.node.url.replace(there.node.wallet, lease.node.wallet)
        house.fleet.register(msgspec.structs.replace(lease.claim, url=url))
        assert await house.audit(first, 0, 14) is None and house.results == ["unanswered"]
