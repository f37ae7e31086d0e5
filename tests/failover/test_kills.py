"""Kill any node at any token: the client's text is the unbroken run's. Real processes and signals, fake engine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from daemons.kit.tasks import Tasks
from meshnet.client.sse import UsageReport
from meshnet.domain.errors import MeshnetError, NodeFailed
from tests.failover.fleet import Fleet, Listening, Told, listen, open_fleet, whole

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]

POSITIONS = {"head": 0, "middle": 1, "tail": 2}
SHARDS = ("0-9", "10-19", "20-29")
NAMES = [f"{letter}{number}" for letter in "hmt" for number in (1, 2)]
N_TOKENS = 24
LONG = 150
"""Tokens that take longer than a process takes to start."""
MOMENTS = (1, 5, 20, N_TOKENS - 1)
STEP_MS = ("--step-ms", "8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two nodes for each third of the layers. Whoever breaks one mends it."""
    async with open_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        shards = {name: SHARDS["hmt".index(name[0])] for name in NAMES}
        await asyncio.gather(*(fleet.start_node(name, shard, *STEP_MS, wait=False) for name, shard in shards.items()))
        await fleet.ready(NAMES)
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def tasks(fleet: Fleet) -> AsyncIterator[Tasks]:
    """Afterwards the mesh is mended, whatever the test left of it."""
    tasks = Tasks("test")
    yield tasks
    await tasks.close()
    dead = [name for name in NAMES if fleet.processes[name].is_dead]
    for name in dead:
        await fleet.restart(name)
    await fleet.ready(dead)


def assert_whole(told: Told, prompt: str, tokens: int = N_TOKENS) -> None:
    assert told.text == whole(prompt, tokens)
    assert told.usage == UsageReport(len(prompt.split()), tokens)


async def last_call(fleet: Fleet):
    return (await fleet.client.calls()).calls[0]


@pytest.mark.parametrize("token", MOMENTS)
@pytest.mark.parametrize("position", POSITIONS)
async def test_kill_9_at_a_token(fleet: Fleet, tasks: Tasks, position: str, token: int) -> None:
    prompt = f"kill the {position} at token {token}"
    listening = Listening(fleet.client, prompt, N_TOKENS, tasks)
    victim = await fleet.name_of((await listening.token(token)).victim(POSITIONS[position]))
    await fleet.kill(victim)
    assert_whole(await listening.end(), prompt)
    call = await last_call(fleet)
    assert call.outcome == "ok" and call.completion_tokens == N_TOKENS
    if token < N_TOKENS - 1:  # At the very end the answer may win the race.
        assert call.reroutes >= 1 and call.attempts[0].culprit
    await fleet.all_free()


@pytest.mark.parametrize("position", POSITIONS)
async def test_kill_9_before_the_first_token(fleet: Fleet, position: str) -> None:
    """A third holder dies in its first prefill. Calls find it by chance; all of them are answered whole."""
    await fleet.start_node("extra", SHARDS[POSITIONS[position]], *STEP_MS, fail="prefill:exit")
    for number in range(60):
        prompt = f"question {number} before the first token"
        assert_whole(await listen(fleet.client, prompt, 4), prompt, 4)
        if fleet.processes["extra"].is_dead:
            break
    assert fleet.processes["extra"].is_dead
    call = await last_call(fleet)
    assert call.reroutes == 1 and call.outcome == "ok"
    await fleet.all_free()
    await fleet.retire("extra")


@pytest.mark.parametrize(
    "token", [5, *(pytest.param(moment, marks=pytest.mark.full) for moment in MOMENTS if moment != 5)]
)
@pytest.mark.parametrize("position", POSITIONS)
async def test_sigstop_is_found_by_probe_and_what_it_says_later_is_dropped(
    fleet: Fleet, tasks: Tasks, position: str, token: int
) -> None:
    prompt = f"stop the {position} at token {token}"
    listening = Listening(fleet.client, prompt, N_TOKENS, tasks)
    victim = await fleet.name_of((await listening.token(token)).victim(POSITIONS[position]))
    fleet.signal(victim, signal.SIGSTOP)
    try:
        if token < N_TOKENS - 4:
            await listening.token(token + 4)  # Beyond what was on its way: another route goes on.
            fleet.signal(victim, signal.SIGCONT)  # It answers now, in the middle of the new attempt.
        assert_whole(await listening.end(), prompt)
    finally:
        fleet.signal(victim, signal.SIGCONT)
    call = await last_call(fleet)
    assert call.outcome == "ok"
    if call.reroutes:
        names = {node.node_id: name for name, node in (await fleet.nodes()).items()}
        # A node that an earlier test killed keeps its lease for a while, and may have been tried first.
        assert victim in {names.get(attempt.culprit or "") for attempt in call.attempts[:-1]}
    await fleet.ready([victim])
    await fleet.all_free()


async def test_two_kills_in_one_answer(fleet: Fleet, tasks: Tasks) -> None:
    prompt = "two kills in one answer"
    listening = Listening(fleet.client, prompt, N_TOKENS, tasks)
    first = await fleet.name_of((await listening.token(4)).victim(1))
    await fleet.kill(first)
    await listening.token(12)
    (second,) = {"t1": ["t1"], "t2": ["t2"]}[await tail_in_use(fleet)]
    await fleet.kill(second)
    assert_whole(await listening.end(), prompt)
    assert (await last_call(fleet)).reroutes >= 2
    await fleet.all_free()


async def tail_in_use(fleet: Fleet) -> str:
    call = await last_call(fleet)
    return await fleet.name_of(call.attempts[-1].hops[-1].node_id)


async def test_kill_in_the_prefill_of_the_replay(fleet: Fleet, tasks: Tasks) -> None:
    """The spare that takes over dies in its first prefill, which is the replay's; the one after it answers."""
    prompt = "kill in the prefill of the replay"
    listening = Listening(fleet.client, prompt, LONG, tasks)
    victim = await fleet.name_of((await listening.token(4)).victim(1))
    other = {"m1": "m2", "m2": "m1"}[victim]
    await fleet.kill(other)
    await fleet.start_node("fragile", SHARDS[1], *STEP_MS, fail="prefill:exit")
    await fleet.kill(victim)
    assert await fleet.ended("fragile") != 0
    await fleet.restart(victim)
    assert_whole(await listening.end(), prompt, LONG)
    assert (await last_call(fleet)).reroutes >= 2
    await fleet.all_free()
    await fleet.retire("fragile")


async def test_spare_that_appears_in_time_goes_on(fleet: Fleet, tasks: Tasks) -> None:
    prompt = "the only holder dies and comes back"
    listening = Listening(fleet.client, prompt, N_TOKENS, tasks)
    await listening.token(3)
    for name in ("t1", "t2"):
        await fleet.kill(name)
    await fleet.restart("t2")
    assert_whole(await listening.end(), prompt)
    await fleet.all_free()


async def test_pinned_call_is_not_rerouted_and_names_the_node(fleet: Fleet, tasks: Tasks) -> None:
    nodes = await fleet.nodes()
    pin = [nodes[name].node_id for name in ("h1", "m1", "t1")]
    heard = ""
    with pytest.raises(NodeFailed, match=pin[1]):
        async with fleet.client.chat(
            {"model": "fake", "messages": [{"role": "user", "content": "pin"}], "max_tokens": 500, "route": pin}
        ) as stream:
            async for event in stream:
                heard += getattr(event, "text", "")
                if heard.count(" ") == 3:
                    await fleet.kill("m1")
    assert whole("pin", 500).startswith(heard)
    await fleet.all_free()


async def test_no_spare_is_a_clear_error_within_the_deadline(tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = ("--spare-wait", "0.5", "--timeout-between-tokens", "0.6")
    tasks = Tasks("test")
    async with open_fleet(tmp_path_factory.mktemp("alone"), *flags) as fleet:
        await fleet.start_node("h", "0-14", *STEP_MS, wait=False)
        await fleet.start_node("t", "15-29", *STEP_MS, wait=False)
        await fleet.ready(["h", "t"])
        listening = Listening(fleet.client, "no spare", 500, tasks)
        await listening.token(3)
        await fleet.kill("t")
        with pytest.raises(MeshnetError, match=r"15-29.*no other route"):
            await listening.end()
        assert whole("no spare", 500).startswith(listening.told.text)
        assert listening.told.usage is None
        await fleet.all_free()
    await tasks.close()


async def test_node_out_of_memory_or_computing_nonsense_is_left_for_another(fleet: Fleet) -> None:
    for action, code in (("oom", "node_oom"), ("nan", "nan")):
        await fleet.start_node("extra", SHARDS[1], *STEP_MS, fail=f"token=2:{action}")
        for number in range(60):
            prompt = f"{action} number {number}"
            assert_whole(await listen(fleet.client, prompt, 4), prompt, 4)
            call = await last_call(fleet)
            # Between the two rounds a call may still meet the lease of the process that was killed.
            if call.reroutes and call.attempts[0].code not in ("unreachable", "link_closed"):
                assert call.attempts[0].code == code
                break
        else:
            raise AssertionError(f"no call met the node that fails with {action}")
        await fleet.retire("extra")
