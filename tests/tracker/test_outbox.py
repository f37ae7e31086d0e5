from __future__ import annotations

import asyncio

from daemons.tracker.outbox import Outbox, Text
from meshnet.domain.errors import NodeFailed
from meshnet.wire.messages import Delta, Finished

END = Finished(session=1, attempt=1, finish_reason="stop", prompt_tokens=1, completion_tokens=2)


def delta(text: str) -> Delta:
    return Delta(session=1, attempt=1, text=text, token_ids=(1,))


async def test_texts_that_waited_together_come_as_one_then_the_end() -> None:
    outbox = Outbox()
    assert outbox.put(delta("a")) and outbox.put(delta("")) and outbox.put(delta("b"))
    outbox.close(END)
    assert await outbox.get(1) == Text("ab")
    assert await outbox.get(1) is END
    assert await outbox.get(1) is END


async def test_first_end_stays() -> None:
    outbox = Outbox()
    broken = NodeFailed("it broke")
    outbox.close(broken)
    outbox.close(END)
    assert await outbox.get(1) is broken


async def test_nothing_within_the_time_is_none() -> None:
    assert await Outbox().get(0.01) is None


async def test_bound_holds_and_frees_when_read() -> None:
    outbox = Outbox(max_bytes=100)
    assert outbox.put(delta("x" * 20))
    assert not outbox.put(delta("x" * 20))
    assert await outbox.get(1) == Text("x" * 20)
    assert outbox.put(delta("x" * 20))


async def test_waiting_reader_is_woken() -> None:
    outbox = Outbox()
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(outbox.get(5))
        await asyncio.sleep(0)
        outbox.put(delta("now"))
    assert reader.result() == Text("now")
