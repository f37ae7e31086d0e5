"""The ledger: hops abut, the head is in it, layers x tokens add up; whatever breaks, and over a restart."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from daemons.tracker.store import open_database
from meshnet.domain import usage as domain
from meshnet.domain.ids import CallId, ModelKey, NodeId, Wallet
from meshnet.wire.demand import UsageRow
from tests.tracker.fake_head import PROMPT_IDS, Talk, answering
from tests.tracker.running import Running, body, claim, node_id_of, run_tracker


def check(rows: list[UsageRow], n_layers: int = 30) -> int:
    """Work units of one call, after the domain's own checks of its rows."""
    return domain.check_call(
        [
            domain.UsageRow(
                CallId(row.call_id),
                row.attempt,
                row.hop,
                ModelKey(row.model_key),
                NodeId(row.node_id),
                Wallet(row.wallet),
                row.start_layer,
                row.end_layer,
                row.tokens,
                row.replayed_tokens,
                row.outcome,  # type: ignore[arg-type]
            )
            for row in rows
        ],
        n_layers,
    )


async def test_rows_of_a_call_abut_and_sum_to_layers_times_tokens(running: Running) -> None:
    await running.head(1, 0, 14)
    await running.client.register(claim(2, 15, 29))
    answer = await running.client.ask(body())
    rows = list((await running.client.usage()).rows)
    assert [(row.hop, row.start_layer, row.end_layer) for row in rows] == [(0, 0, 14), (1, 15, 29)]
    assert check(rows) == 30 * (answer.prompt_tokens + answer.completion_tokens) == 30 * (len(PROMPT_IDS) + 8)
    totals = (await running.client.usage()).totals
    assert sum(total.work_units for total in totals) == check(rows)
    assert {total.calls for total in totals} == {1} and {total.price_micro_units for total in totals} == {0}


@pytest.mark.parametrize("after", [0, 3])
async def test_rerouted_call_counts_its_tokens_once(running: Running, after: int) -> None:
    async def script(talk: Talk) -> None:
        if talk.generate.attempt > 1:
            await answering(8)(talk)
            return
        await talk.say(after)
        await talk.fail("step_failed")

    for number in (1, 2):
        (await running.head(number)).script = script
    answer = await running.client.ask(body())
    rows = list((await running.client.usage()).rows)
    assert check(rows) == 30 * (answer.prompt_tokens + answer.completion_tokens)
    outcomes = {row.attempt: (row.outcome, row.replayed_tokens) for row in rows}
    assert outcomes == ({2: ("complete", 0)} if after == 0 else {1: ("failed", 0), 2: ("complete", 5 + after)})


async def test_call_that_produced_nothing_is_no_work(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.fail("invalid_request", "no")

    (await running.head(1)).script = script
    with pytest.raises(Exception, match="no"):
        await running.client.ask(body())
    assert (await running.client.usage()).rows == ()


async def test_ledger_wall_and_event_ids_outlive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with run_tracker(database=open_database(path)) as first:
        await first.head(1)
        for _ in range(3):
            await first.client.ask(body())
        before = await first.client.usage()
        calls = (await first.client.calls()).calls
        last_id = first.tracker.events.last_id
        assert (await first.client.stats()).database == "ok"
    async with run_tracker(database=open_database(path)) as second:
        assert await second.client.usage() == before and len(before.rows) == 3
        assert (await second.client.calls()).calls == calls
        assert second.tracker.events.after(0)[0].id == 1 and second.tracker.events.last_id >= last_id
        (model,) = (await second.client.stats()).models
        assert model.rpm_last_hour * 60 == pytest.approx(3)
        await second.head(1)
        await second.client.ask(body())
        assert (await second.client.calls()).calls[0].seq == calls[0].seq + 1
        (total,) = (await second.client.usage()).totals
        assert (total.calls, total.work_units) == (4, 4 * 30 * 13)


async def test_rows_are_bounded_and_filtered(running: Running) -> None:
    await running.head(1)
    for _ in range(3):
        await running.client.ask(body())
    assert len((await running.client.usage(limit=2)).rows) == 2
    assert (await running.client.usage("nobody")).totals == ()


async def test_claim_of_three_times_the_speed_is_seen(running: Running) -> None:
    honest, liar = await running.head(1), await running.head(2, benchmark_tokens_per_sec=30.0)
    for head in (honest, liar):
        head.script = answering(12, ((10, 100_000),))  # 10 tokens/s, both
    for number in (1, 2):
        for _ in range(4):
            await running.client.ask(body(route=[node_id_of(number, 0, 29)]))
    ratios = {node.name: node.observed_ratio for node in (await running.client.nodes()).nodes}
    assert ratios["n1"] == pytest.approx(1.0, rel=0.01)
    assert ratios["n2"] == pytest.approx(1 / 3, rel=0.01)


def test_response_is_stable_json() -> None:
    row = UsageRow(
        call_id="c",
        attempt=1,
        hop=0,
        model_key="m",
        node_id="w.0-1",
        wallet="w",
        start_layer=0,
        end_layer=1,
        tokens=3,
        replayed_tokens=0,
        outcome="complete",
        work_units=6,
    )
    assert list(msgspec.to_builtins(row)) == [
        "call_id",
        "attempt",
        "hop",
        "model_key",
        "node_id",
        "wallet",
        "start_layer",
        "end_layer",
        "tokens",
        "replayed_tokens",
        "outcome",
        "work_units",
        "price_micro_units",
        "at",
    ]
