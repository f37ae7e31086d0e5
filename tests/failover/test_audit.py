"""Audits: honest holders agree, a third one convicts whoever computes something else, and it is shown."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.audit import PROBE_ROWS, TOLERANCE, difference, judge, probe_rows
from meshnet.domain.engine import ITEMSIZE, Rows
from meshnet.domain.ids import NodeId
from meshnet.domain.routes import Hop
from tests.failover.fleet import listen, whole
from tests.failover.live import LiveMesh, LiveNode, open_live


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

    def __init__(self, live: LiveNode) -> None:
        inner = live.engine.forward

        def forward(entering, start: int, end: int) -> Rows:
            out = inner(entering, start, end)
            return Rows(out.dtype, out.shape, bytes(len(out.data)))

        live.engine.forward = forward  # type: ignore[method-assign]


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
        Liar(tails[1])
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
