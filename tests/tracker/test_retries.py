"""The budget of replays: three at least, a fifth of the running calls, first come first served, nothing lost."""

from __future__ import annotations

import asyncio

import pytest

from daemons.kit.tasks import Tasks
from daemons.tracker.retries import RetryBudget
from meshnet.client.sse import TextDelta
from tests.tracker.fake_head import Talk, answering, whole_text
from tests.tracker.running import body, run_tracker


@pytest.mark.parametrize(("running", "limit"), [(0, 3), (15, 3), (20, 4), (100, 20)])
def test_limit_is_a_fifth_and_three_at_least(running: int, limit: int) -> None:
    assert RetryBudget(lambda: running).limit == limit


async def test_who_comes_beyond_the_budget_waits_for_a_turn() -> None:
    budget, tasks = RetryBudget(lambda: 0), Tasks("test")
    turns = [await budget.turn() for _ in range(3)]
    waiting = [tasks.start(budget.turn(), f"{n}") for n in range(3)]
    await asyncio.sleep(0)
    assert len(budget) == 3 and budget.in_use == 3
    waiting[0].cancel()
    await asyncio.wait((waiting[0],))
    turns[0].release()
    turns[0].release()
    assert (await waiting[1]) is not None and not waiting[2].done()
    assert budget.in_use == 3 and len(budget) == 1
    turns[1].release()
    await waiting[2]
    for turn in (turns[2], waiting[1].result(), waiting[2].result()):
        turn.release()
    assert budget.in_use == 0
    await tasks.close()


async def test_turn_that_comes_with_the_cancel_is_given_back() -> None:
    budget, tasks = RetryBudget(lambda: 0), Tasks("test")
    turns = [await budget.turn() for _ in range(3)]
    late = tasks.start(budget.turn(), "late")
    await asyncio.sleep(0)
    turns[0].release()
    late.cancel()
    await asyncio.wait((late,))
    assert budget.in_use == 2
    await tasks.close()


async def test_all_calls_of_a_dead_node_go_on_though_few_replay_at_once() -> None:
    """Ten calls break together; no more than three replay before their first token, and all get their whole text."""
    replaying, most = 0, 0
    broke = asyncio.Event()

    async def script(talk: Talk) -> None:
        nonlocal replaying, most
        if talk.generate.attempt == 1:
            await talk.say(2)
            if sum(len(head.generated) for head in heads) >= 10:
                broke.set()
            await broke.wait()
            await talk.fail("step_failed")
            return
        replaying += 1
        most = max(most, replaying)
        await asyncio.sleep(0.01)
        replaying -= 1
        await answering(8)(talk)

    async with run_tracker() as running:
        heads = [await running.head(1), await running.head(2)]
        for head in heads:
            head.script = script

        async def ask() -> str:
            async with running.client.chat(body()) as stream:
                return "".join([event.text async for event in stream if isinstance(event, TextDelta)])

        texts = await asyncio.gather(*(ask() for _ in range(10)))
    assert texts == [whole_text(1, 8)] * 10
    assert 1 <= most <= 3


async def test_turn_that_comes_back_in_the_moment_of_a_cancel_is_not_lost() -> None:
    budget, tasks = RetryBudget(lambda: 0), Tasks("test")
    turns = [await budget.turn() for _ in range(3)]
    waiting = tasks.start(budget.turn(), "waiting", quiet=True)
    await asyncio.sleep(0)
    waiting.cancel()
    turns[0].release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (budget.in_use, len(budget)) == (2, 0)
    await tasks.close()
