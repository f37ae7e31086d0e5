"""What a head says that cannot be, or of others: it alone bears it, and the answer goes on elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from meshnet.domain.errors import MeshnetError
from meshnet.wire.messages import Delta, Finished
from tests.tracker.fake_head import FakeHead, Talk, answering, whole_text
from tests.tracker.running import Running, body

LIES: dict[str, dict[str, Any]] = {
    "more tokens than were asked for": {"text": "x", "token_ids": (1,) * 9},
    "tokens that are none": {"text": "x", "token_ids": (-1,)},
    "tokens beyond any vocabulary": {"text": "x", "token_ids": (1 << 40,)},
    "a prompt of such tokens": {"text": "x", "token_ids": (1,), "prompt_token_ids": (1 << 40,)},
    "text without end": {"text": "x" * 1_000_001, "token_ids": (1,)},
    "times that are no numbers one counts with": {"text": "x", "token_ids": (1,), "hop_us": ((0, 1 << 60),)},
}


async def honest_and_lying(running: Running, script: Any) -> tuple[FakeHead, FakeHead]:
    """The lying one is asked first: it claims more."""
    honest, liar = await running.head(1), await running.head(2)
    honest.script, liar.script = answering(8), script
    return honest, liar


@pytest.mark.parametrize("lie", LIES)
async def test_what_cannot_be_is_the_heads_own_fault(running: Running, lie: str) -> None:
    async def script(talk: Talk) -> None:
        g = talk.generate
        await talk.send(Delta(session=g.session, attempt=g.attempt, **LIES[lie]))
        await talk.finish()

    honest, liar = await honest_and_lying(running, script)
    for _ in range(3):
        assert (await running.client.ask(body(max_tokens=8, route_policy="random"))).text == whole_text(1, 8)
    health = {node.node_id: (node.failures, node.suspect) for node in (await running.client.nodes()).nodes}
    assert health[honest.node_id] == (0, False)
    assert all(generate.produced_ids == () for generate in honest.generated)
    assert running.in_flight == 0 and (not liar.generated or health[liar.node_id] != (0, False))


async def test_head_that_claims_more_tokens_than_it_sent_is_not_believed(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(2)
        g = talk.generate
        await talk.send(
            Finished(
                session=g.session, attempt=g.attempt, finish_reason="stop", prompt_tokens=2, completion_tokens=900_000
            )
        )

    await honest_and_lying(running, script)
    for _ in range(3):
        assert (await running.client.ask(body(route_policy="random"))).completion_tokens == 8


async def test_head_that_says_others_are_gone_is_out_itself(running: Running) -> None:
    """Twelve calls over a head that breaks each and names its tail, which answers when it is dialled."""

    async def script(talk: Talk) -> None:
        await talk.say(1)
        await talk.fail("link_closed", "the tail is gone", culprit=talk.generate.hops[1].node_id)

    liar = await running.head(1, 0, 14)
    await running.head(2, 0, 14)
    tails = [await running.head(number, 15, 29) for number in (3, 4)]
    liar.script = script
    for _ in range(12):
        try:
            await running.client.ask(body(route_policy="random"))
        except MeshnetError as error:
            assert error.code == "link_closed"
    nodes = {node.node_id: node for node in (await running.client.nodes()).nodes}
    assert all(nodes[tail.node_id].health == "ok" and not nodes[tail.node_id].suspect for tail in tails)
    assert nodes[liar.node_id].failures >= 3


async def test_culprit_that_is_not_on_the_route_is_the_head(running: Running) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(1)
        await talk.fail("step_failed", "somebody else did it", culprit=f"{'z' * 20}.0-29")

    await honest_and_lying(running, script)
    for _ in range(3):
        await running.client.ask(body(route_policy="random"))
    for call in (await running.client.calls()).calls:
        assert all(attempt.culprit in (None, attempt.hops[0].node_id) for attempt in call.attempts)
