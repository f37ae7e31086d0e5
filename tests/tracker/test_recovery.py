"""Whatever breaks, the answer goes on elsewhere: no repeat, no gap, one usage; or an error that says which node."""

from __future__ import annotations

import asyncio
import socket

import pytest

from meshnet.client.sse import TextDelta
from meshnet.domain.errors import InvalidRequest, NodeFailed, Overloaded
from tests.tracker.fake_head import PROMPT_IDS, FakeHead, Talk, answering, whole_text
from tests.tracker.running import Running, body, claim, node_id_of, run_tracker


def only(head: FakeHead, other: FakeHead) -> tuple[FakeHead, FakeHead]:
    """(the one that was asked first, the other)."""
    return (head, other) if head.generated else (other, head)


async def two_heads(running: Running, script: object) -> tuple[FakeHead, FakeHead]:
    heads = await running.head(1), await running.head(2)
    for head in heads:
        head.script = script  # type: ignore[assignment]
    return heads


def breaking_once(after: int, how: str) -> object:
    """The first attempt breaks after so many tokens, later ones answer 8."""

    async def script(talk: Talk) -> None:
        if talk.generate.attempt > 1:
            await answering(8)(talk)
            return
        await talk.say(after)
        if how == "link":
            await talk.head.break_links()
        else:
            await talk.fail(how)

    return script


@pytest.mark.parametrize("after", [0, 1, 5, 8])
@pytest.mark.parametrize("how", ["link", "step_failed", "epoch_changed"])
async def test_stream_goes_on_elsewhere_when_a_head_breaks(running: Running, after: int, how: str) -> None:
    heads = await two_heads(running, breaking_once(after, how))
    async with running.client.chat(body()) as stream:
        events = [event async for event in stream]
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == whole_text(1, 8)
    (first,), (second,) = heads[0].generated, heads[1].generated
    again = second if second.attempt == 2 else first
    assert again.attempt == 2 and again.session == first.session
    came = len(again.produced_ids)
    # What still lay in a broken link's queue is lost; what was said before a Failed is not.
    assert came <= after if how == "link" else came == after
    assert again.chars_sent == len(whole_text(1, came))
    assert again.prompt_ids == (PROMPT_IDS if came else None)
    call = (await running.client.calls()).calls[0]
    assert (call.outcome, call.completion_tokens, call.reroutes) == ("ok", 8, 1)
    assert call.attempts[0].culprit and call.attempts[0].code
    assert running.in_flight == 0


async def test_rerouted_answer_adds_no_speed_sample(running: Running) -> None:
    await two_heads(running, breaking_once(5, "step_failed"))
    await running.client.ask(body())
    (model,) = (await running.client.routing()).models
    assert all(row.samples == 0 for row in model.candidates)
    bad, good = sorted((await running.client.nodes()).nodes, key=lambda node: node.reputation)
    assert (bad.health, bad.failures, good.health, good.reputation) == ("ejected", 1, "ok", 1.0)
    assert model.left_out[0][0] == bad.node_id and "ejected" in model.left_out[0][1]


async def test_refusal_leads_elsewhere_and_blames_nobody(running: Running) -> None:
    await two_heads(running, breaking_once(0, "overloaded"))
    assert (await running.client.ask(body())).text == whole_text(1, 8)
    assert all(node.reputation == 1.0 for node in (await running.client.nodes()).nodes)


async def test_all_refuse_is_503_with_retry_after(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.fail("overloaded", "no KV left")

    await two_heads(running, script)
    with pytest.raises(Overloaded, match="no KV left"):
        await running.client.ask(body())
    assert running.in_flight == 0


async def test_three_reroutes_and_no_more(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(1)
        await talk.fail("step_failed")

    heads = [await running.head(number) for number in range(1, 7)]
    for head in heads:
        head.script = script
    with pytest.raises(NodeFailed, match="4 routes were tried"):
        await running.client.ask(body())
    assert sum(len(head.generated) for head in heads) == 4


async def test_client_fault_is_not_tried_again(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.fail("invalid_request", "logit_bias names no token", param="logit_bias")

    heads = await two_heads(running, script)
    with pytest.raises(InvalidRequest) as caught:
        await running.client.ask(body())
    assert caught.value.param == "logit_bias"
    assert sum(len(head.generated) for head in heads) == 1


async def test_the_same_bad_request_fifty_times_bans_nobody(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.fail("invalid_request", "logit_bias names no token", param="logit_bias")

    await two_heads(running, script)
    for _ in range(50):
        with pytest.raises(InvalidRequest):
            await running.client.ask(body())
    nodes = (await running.client.nodes()).nodes
    assert [(node.reputation, node.health) for node in nodes] == [(1.0, "ok")] * 2


async def test_pinned_call_is_never_rerouted_and_names_the_node(running: Running) -> None:
    first, other = await two_heads(running, breaking_once(3, "step_failed"))
    with pytest.raises(NodeFailed, match=first.node_id):
        await running.client.ask(body(route=[first.node_id]))
    assert not other.generated


async def test_culprit_in_the_middle_is_avoided_and_not_its_head(running: Running) -> None:
    head = await running.head(1, 0, 14)
    await running.client.register(claim(2, 15, 29, benchmark_tokens_per_sec=50.0))
    await running.client.register(claim(3, 15, 29))
    bad = node_id_of(2, 15, 29)

    async def script(talk: Talk) -> None:
        if talk.generate.attempt == 1:
            await talk.say(2)
            await talk.fail("link_closed", f"{bad} is gone", culprit=bad)
        else:
            await answering(8)(talk)

    head.script = script
    assert (await running.client.ask(body())).text == whole_text(1, 8)
    routes = [[hop.node_id for hop in g.hops] for g in head.generated]
    assert routes == [[head.node_id, bad], [head.node_id, node_id_of(3, 15, 29)]]


async def test_no_spare_ends_with_an_error_that_names_node_and_gap(running: Running) -> None:
    head = await running.head(1)

    async def script(talk: Talk) -> None:
        await talk.say(1)
        await talk.head.die()

    head.script = script
    with pytest.raises(NodeFailed, match=rf"{head.node_id}.*no other route"):
        await running.client.ask(body())


async def test_only_node_whose_line_broke_goes_on_when_it_answers_a_dial(running: Running) -> None:
    head = await running.head(1)
    head.script = breaking_once(3, "link")  # type: ignore[assignment]
    assert (await running.client.ask(body())).text == whole_text(1, 8)
    assert [g.attempt for g in head.generated] == [1, 2]
    assert not (await running.client.nodes()).nodes[0].suspect


async def test_only_tail_that_is_said_to_be_gone_is_used_again_when_it_answers_a_dial(running: Running) -> None:
    head, tail = await running.head(1, 0, 14), await running.head(2, 15, 29)

    async def script(talk: Talk) -> None:
        if talk.generate.attempt == 1:
            await talk.say(3)
            await talk.fail("silent", "the tail does not answer", culprit=tail.node_id)
        else:
            await answering(8)(talk)

    head.script = script
    assert (await running.client.ask(body())).text == whole_text(1, 8)
    assert [[hop.node_id for hop in g.hops] for g in head.generated] == [[head.node_id, tail.node_id]] * 2


async def test_only_tail_that_takes_a_dial_and_says_nothing_holds_no_call_beyond_its_patience(running: Running) -> None:
    """A stopped process: its system still takes connections. The call ends after --spare-wait, not with the dial."""
    head, gone = await running.head(1, 0, 14), node_id_of(2, 15, 29)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        await running.client.register(claim(2, 15, 29, f"http://127.0.0.1:{mute.getsockname()[1]}"))

        async def script(talk: Talk) -> None:
            await talk.say(3)
            await talk.fail("silent", "the tail does not answer", culprit=gone)

        head.script = script
        with pytest.raises(NodeFailed, match=rf"{gone}.*no other route"):
            await asyncio.wait_for(running.client.ask(body()), 1.5)
        assert len(head.generated) == 1 and running.in_flight == 0


async def test_answer_that_broke_waits_for_room_and_a_new_one_is_refused() -> None:
    """The only other node is full at first: what was begun goes on there later, what was not is told to come back."""
    async with run_tracker(spare_wait=20.0) as running:
        broken, full = await running.head(1), await running.head(2)

        async def breaks(talk: Talk) -> None:
            await talk.say(3)
            await talk.fail("step_failed")

        async def full_at_first(talk: Talk) -> None:
            if talk.generate.attempt < 7:
                await talk.fail("kv_full", "no KV left")
            else:
                await answering(8)(talk)

        broken.script, full.script = breaks, full_at_first
        question = {**body(), "route_policy": "greedy"}
        assert (await running.client.ask(question)).text == whole_text(1, 8)
        assert len(full.generated) > 4
        await broken.die()
        with pytest.raises(Overloaded, match="no KV left"):
            await running.client.ask(body())


async def test_spare_that_appears_in_time_goes_on() -> None:
    async with run_tracker(spare_wait=20.0) as running:
        head = await running.head(1)
        broke = asyncio.Event()

        async def script(talk: Talk) -> None:
            await talk.say(3)
            broke.set()
            await talk.fail("step_failed")

        head.script = script
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(running.client.ask(body()))
            await broke.wait()
            await running.head(2)
        assert asked.result().text == whole_text(1, 8)


async def test_node_that_registered_again_is_welcome_under_its_new_epoch() -> None:
    async with run_tracker(spare_wait=20.0) as running:
        head = await running.head(1)
        head.script = breaking_once(3, "epoch_changed")  # type: ignore[assignment]

        async def again(talk: Talk) -> None:
            await breaking_once(3, "step_failed")(talk)  # type: ignore[operator]
            if talk.generate.attempt == 1:
                await running.client.register(claim(1, 0, 29, head.url))

        head.script = again
        assert (await running.client.ask(body())).text == whole_text(1, 8)
        assert [g.hops[0].epoch for g in head.generated] == [1, 2]


async def test_unreachable_head_is_passed_over(running: Running) -> None:
    await running.client.register(claim(1, 0, 29, "http://127.0.0.1:9", benchmark_tokens_per_sec=99.0))
    await running.head(2)
    answer = await running.client.ask(body())
    assert answer.text == whole_text(1, 8)
    assert answer.meshnet["rerouted"][0]["code"] == "unreachable"


async def test_silent_head_is_probed_and_replaced() -> None:
    async with run_tracker(timeout_between_tokens=0.1) as running:

        async def script(talk: Talk) -> None:
            if talk.generate.attempt > 1:
                await answering(8)(talk)
                return
            await talk.say(2)
            talk.head.answers_probes = False
            await talk.hang()

        heads = await two_heads(running, script)
        answer = await running.client.ask(body())
        assert answer.text == whole_text(1, 8)
        assert answer.meshnet["rerouted"][0]["code"] == "stalled"
        first = next(head for head in heads if head.probes)
        await first.until(lambda: bool(first.cancels))


async def test_head_that_says_it_computes_is_waited_for() -> None:
    async with run_tracker(timeout_between_tokens=0.05) as running:
        head = await running.head(1)

        async def script(talk: Talk) -> None:
            await talk.say(2)
            await talk.head.until(lambda: len(talk.head.probes) >= 3)
            await answering(8)(talk)

        head.script = script
        answer = await running.client.ask(body())
        assert answer.text == whole_text(1, 8) and answer.meshnet["attempts"] == 1


async def test_head_that_lost_the_session_is_replaced() -> None:
    async with run_tracker(timeout_between_tokens=0.05) as running:

        async def script(talk: Talk) -> None:
            if talk.generate.attempt > 1:
                await answering(8)(talk)
                return
            await talk.say(2)
            talk.head.knows_sessions = False
            await talk.hang()

        await two_heads(running, script)
        answer = await running.client.ask(body())
        assert answer.text == whole_text(1, 8) and answer.meshnet["rerouted"][0]["code"] == "session_lost"


async def test_call_deadline_ends_the_call_and_the_head() -> None:
    async with run_tracker(timeout_call=0.3) as running:
        head = await running.head(1)
        head.script = Talk.hang
        with pytest.raises(Exception, match="within 0"):
            await running.client.ask(body())
        await head.until(lambda: bool(head.cancels))
        assert running.in_flight == 0


async def test_late_frames_of_an_abandoned_attempt_are_dropped() -> None:
    async with run_tracker(timeout_between_tokens=0.1) as running:
        late = asyncio.Event()
        said = asyncio.Event()

        async def script(talk: Talk) -> None:
            if talk.generate.attempt > 1:
                late.set()
                await said.wait()
                await answering(8)(talk)
                return
            await talk.say(2)
            talk.head.answers_probes = False
            await late.wait()
            await talk.say(3)
            await talk.finish()
            said.set()

        await two_heads(running, script)
        assert (await running.client.ask(body())).text == whole_text(1, 8)


async def test_link_to_a_process_that_was_replaced_is_cut_at_once() -> None:
    async with run_tracker(spare_wait=20.0) as running:
        head = await running.head(1)

        async def script(talk: Talk) -> None:
            if talk.generate.attempt > 1:
                await answering(8)(talk)
                return
            await talk.say(2)
            # The old process hangs; another one has its wallet and place now.
            await running.client.register(claim(1, 0, 29, head.url, boot="another-process"))
            await talk.hang()

        head.script = script
        answer = await running.client.ask(body())
        assert answer.text == whole_text(1, 8) and answer.meshnet["rerouted"][0]["code"] == "link_closed"
