"""Learning on a live tracker: traffic follows speed, what is in flight goes back to nothing, explaining is free."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter

import pytest

from meshnet.client.sse import TextDelta
from meshnet.domain.errors import MeshnetError
from meshnet.wire.routing import ExplainRequest
from tests.tracker.fake_head import FakeHead, Script, Talk, answering
from tests.tracker.running import MODEL, Running, body, run_tracker

FAST_US, SLOW_US = 3_000, 12_000
KINDS = ("whole", "pinned", "client-fault", "node-fault", "left", "times-out", "overloaded")


def computing(microseconds: int) -> Script:
    """Twelve tokens, of which each says that it took so long."""
    return answering(12, ((0, microseconds),))


async def routes_taken(running: Running, requests: int, **fields: object) -> Counter[str]:
    """How often each head began an answer."""
    taken: Counter[str] = Counter()
    for _ in range(requests):
        answer = await running.client.ask(body(**fields))
        taken[answer.meshnet["route"].partition(" | ")[2].partition("[")[0]] += 1
    return taken


async def test_hop_takes_the_faster_route_and_follows_when_speeds_swap() -> None:
    async with run_tracker(route_policy="hop") as running:
        heads = [await running.head(number, benchmark_tokens_per_sec=160.0) for number in (1, 2)]
        heads[0].script, heads[1].script = computing(SLOW_US), computing(FAST_US)
        await routes_taken(running, 20)
        assert (await routes_taken(running, 30))[heads[1].node_id] >= 24
        heads[0].script, heads[1].script = computing(FAST_US), computing(SLOW_US)
        assert (await routes_taken(running, 30))[heads[0].node_id] > 15


def taking(seconds: float) -> Script:
    """Twelve tokens, so long apart."""

    async def script(talk: Talk) -> None:
        for _ in range(12):
            await asyncio.sleep(seconds)
            await talk.say(1)
        await talk.finish()

    return script


async def timed_tps(running: Running, node_id: str) -> float:
    """As its client times a pinned answer."""
    started = time.perf_counter()
    answer = await running.client.ask(body(route=[node_id]))
    return answer.completion_tokens / (time.perf_counter() - started)


async def test_coefficients_of_adr_are_those_of_timed_pinned_routes() -> None:
    async with run_tracker() as running:
        heads = [await running.head(number) for number in (1, 2)]
        heads[0].script, heads[1].script = taking(0.004), taking(0.016)
        timed: dict[str, list[float]] = {head.node_id: [] for head in heads}
        for _ in range(6):
            await routes_taken(running, 2)
            for node_id, found in timed.items():
                found.append(await timed_tps(running, node_id))
        rows = {row.hops[0].node_id: row for row in (await running.client.routing(MODEL)).models[0].candidates}
        expected = statistics.mean(timed[heads[1].node_id]) / statistics.mean(timed[heads[0].node_id])
        assert rows[heads[0].node_id].coefficient == 1
        assert rows[heads[1].node_id].coefficient == pytest.approx(expected, rel=0.25)
        share = rows[heads[0].node_id].expected_share
        assert share == pytest.approx(1 / (1 + rows[heads[1].node_id].coefficient or 0))


async def test_a_request_may_name_its_policy(running: Running) -> None:
    await running.head(1)
    answer = await running.client.ask(body(route_policy="p2c"))
    assert answer.meshnet["policy"] == "p2c" and "p2c" in answer.meshnet["why"]
    text = (await running.client.call(answer.call_id)).attempts[0].decision
    assert (text.policy, sum(text.probabilities.values())) == ("p2c", 1.0)


async def test_hop_timings_leave_the_prompt_out(running: Running) -> None:
    head = await running.head(1)

    async def script(talk: Talk) -> None:
        await talk.say(1, ((0, 900_000),))
        await talk.say(9, ((5, 1_000),))
        await talk.finish()

    head.script = script
    await running.client.ask(body())
    (hop,) = (await running.client.calls()).calls[0].attempts[0].hops
    assert (hop.queued_us, hop.computing_us) == (5, 1_000)


async def test_explaining_changes_no_later_choice() -> None:
    chosen = []
    for explains in (0, 2):
        async with run_tracker() as running:
            for number in (1, 2, 3):
                await running.head(number)
            await routes_taken(running, 1)
            for _ in range(explains):
                explained = await running.client.explain(ExplainRequest(model=MODEL))
                await running.client.routing(MODEL)
            modes = []
            for _ in range(10):
                answer = await running.client.ask(body(route_policy="random"))
                modes.append(answer.meshnet["route"])
            chosen.append(modes)
    assert chosen[0] == chosen[1]
    assert explained.decision is not None and len(explained.candidates) == 3


async def test_explain_with_a_seed_gives_that_seeds_choice(running: Running) -> None:
    for number in (1, 2, 3, 4):
        await running.head(number)
    ask = [ExplainRequest(model=MODEL, route_policy="random", seed=seed) for seed in range(12)]
    first = [(await running.client.explain(request)).decision for request in ask]
    assert first == [(await running.client.explain(request)).decision for request in ask]
    assert len({decision.signature for decision in first if decision is not None}) > 1


async def test_pinned_arms_stay_in_the_table_when_they_are_no_candidates(running: Running) -> None:
    whole, part = await running.head(1), await running.head(2, 15, 29)
    await running.client.ask(body(route=[whole.node_id]))
    await running.head(3, 0, 14)
    running.tracker.fleet.leave(whole.node_id)
    (model,) = (await running.client.routing(MODEL)).models
    rows = {row.hops[0].node_id: row for row in model.candidates}
    assert not rows[whole.node_id].current and rows[whole.node_id].samples == 1
    assert rows[whole.node_id].status == "stale" and rows[whole.node_id].expected_share == 0
    assert sum(row.expected_share for row in model.candidates) == 1 and part.node_id in str(model.candidates)


async def test_decisions_are_counted_by_mode_and_policy(running: Running) -> None:
    await running.head(1)
    await running.client.ask(body())
    text = running.tracker.metrics.text().decode()
    assert f'meshnet_route_decisions_total{{mode="scout",model="{MODEL}",policy="adr"}} 1.0' in text
    assert "meshnet_route_decision_seconds_count 1.0" in text


def mixed(heads: list[FakeHead]) -> Script:
    """What becomes of an answer follows from the client's seed."""

    async def script(talk: Talk) -> None:
        kind = KINDS[talk.seed % len(KINDS)]
        if kind == "client-fault":
            await talk.fail("context_length_exceeded")
        elif kind == "node-fault" and talk.generate.attempt == 1:
            await talk.say(3)
            await talk.fail("step_failed")
        elif kind == "overloaded" and talk.generate.attempt == 1:
            await talk.fail("kv_full")
        elif kind in ("left", "times-out"):
            await talk.say(2)
            await talk.hang()
        else:
            await answering(8)(talk)

    for head in heads:
        head.script = script
    return script


async def leave_early(running: Running, seed: int) -> None:
    async with running.client.chat(body(seed=seed)) as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.text:
                return


async def test_nothing_is_in_flight_after_two_hundred_mixed_requests() -> None:
    async with run_tracker(timeout_call=1.0) as running:
        heads = [await running.head(number) for number in (1, 2, 3)]
        mixed(heads)
        places = asyncio.Semaphore(40)
        busiest = 0

        async def one(seed: int) -> None:
            nonlocal busiest
            kind = KINDS[seed % len(KINDS)]
            async with places:
                busiest = max(busiest, running.in_flight)
                if kind == "left":
                    await leave_early(running, seed)
                    return
                pin = {"route": [heads[seed % 3].node_id]} if kind == "pinned" else {}
                with contextlib.suppress(MeshnetError):
                    await running.client.ask(body(seed=seed, **pin))

        await asyncio.gather(*(one(seed) for seed in range(200)))
        outcomes = Counter(call.outcome for call in (await running.client.calls(limit=500)).calls)
        assert sum(outcomes.values()) == 200 and min(outcomes[o] for o in ("ok", "failed", "cancelled")) > 20
        assert busiest > 10 and running.in_flight == 0
        assert all(node.tracker_in_flight == 0 for node in (await running.client.nodes()).nodes)
