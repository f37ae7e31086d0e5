"""Nodes that compute nonsense or run out of memory: named, or only spared for a while."""

from __future__ import annotations

import array
import math
import sys

import pytest

from daemons.node.admission import HALVED_S, Admission
from daemons.node.finite import is_finite
from meshnet.domain.engine import KvUse, Rows
from meshnet.domain.errors import Overloaded
from tests.mesh.fake_engine import expected_tokens, prompt_ids
from tests.mesh.ring import Mesh, RunningNode, open_mesh

PROMPT = "what is a mesh"


async def ring(mesh: Mesh) -> list[RunningNode]:
    return [await mesh.add(shard) for shard in ("0-9", "10-19", "20-29")]


@pytest.mark.parametrize("liar", [0, 1])
async def test_node_that_sends_nan_is_named_by_the_next_one(liar: int) -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        nodes[liar].engine.emits_nan = True
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("nan", nodes[liar].node_id)
        await mesh.all_free()


async def test_node_whose_own_rows_are_nan_names_itself() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        nodes[1].engine.makes_nan = True
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("nan", nodes[1].node_id)
        await mesh.all_free()


async def test_out_of_memory_in_a_step_is_no_failure_and_halves_admission() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        nodes[1].engine.fail_next = MemoryError()
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("node_oom", nodes[1].node_id)
        await mesh.all_free()
        assert nodes[1].node.worker.kv.budget_bytes == nodes[1].engine.budget // 2
        answer = await mesh.ask(mesh.route(*nodes))
        await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids(PROMPT), 12)
        # More than half of the budget: refused by the one that ran out, though its pool is empty.
        nodes[1].engine.budget = 2 * 16 * 64 * 10 - 1
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("kv_full", nodes[1].node_id)
        await mesh.all_free()


def test_halved_admission_is_whole_again_after_its_time() -> None:
    clock = [100.0]
    admission, use = Admission(lambda: clock[0]), KvUse(1000, 0, 0)
    admission.heard(Overloaded("no KV", code="kv_full"))
    admission.require(use, 900)
    admission.heard(Overloaded("no memory", code="node_oom"))
    assert admission.shown(use).budget_bytes == 500
    admission.require(use, 500)
    with pytest.raises(Overloaded):
        admission.require(use, 501)
    clock[0] += HALVED_S
    admission.require(use, 900)
    assert admission.shown(use).budget_bytes == 1000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_numbers_are_seen(bad: float) -> None:
    assert sys.byteorder == "little"
    good = array.array("f", [3.4e38] * 63)
    assert is_finite(Rows("float32", (1, 63), good.tobytes()))
    assert not is_finite(Rows("float32", (1, 64), (good + array.array("f", [bad])).tobytes()))
    upper = array.array("f", [1.0, bad]).tobytes()
    assert not is_finite(Rows("bfloat16", (1, 2), upper[2:4] + upper[6:8]))
    assert is_finite(Rows("bfloat16", (1, 2), upper[2:4] * 2))


def test_16_bit_rows_are_read_by_their_exponent() -> None:
    assert is_finite(Rows("float16", (1, 2), bytes.fromhex("ff7b 0080".replace(" ", ""))))  # 65504 and -0
    assert not is_finite(Rows("float16", (1, 1), bytes.fromhex("007c")))
