from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from meshnet.client.sse import MAX_EVENT_BYTES, Finish, Sse, TextDelta, UsageReport, chat_events, read_events
from meshnet.domain.errors import InvalidRequest, MeshnetError, NodeFailed, Overloaded, Unreachable
from meshnet.wire.openai import DONE, KEEPALIVE, Answer, Usage, error_event

ANSWER = Answer("call-1", "m", 1)


async def lines(raw: bytes) -> AsyncIterator[str]:
    for line in raw.decode().split("\n")[:-1]:
        yield line


async def events(raw: bytes) -> list[object]:
    return [event async for event in chat_events(read_events(lines(raw)), "http://t")]


async def test_chat_is_read_back_as_it_was_written() -> None:
    raw = ANSWER.first_chunk() + KEEPALIVE + ANSWER.delta_chunk("zwei\n\nLinien 🙂")
    raw += ANSWER.last_chunk("stop", {"mode": "scout"}) + ANSWER.usage_chunk(Usage(3, 2)) + DONE
    assert await events(raw) == [
        TextDelta("", "assistant"),
        TextDelta("zwei\n\nLinien 🙂"),
        Finish("stop", {"mode": "scout"}),
        UsageReport(3, 2),
    ]


@pytest.mark.parametrize(
    "error", [NodeFailed("node x broke"), Overloaded("full"), InvalidRequest("temperature", param="temperature")]
)
async def test_error_event_is_raised_as_what_it_was(error: MeshnetError) -> None:
    with pytest.raises(type(error)) as caught:
        await events(ANSWER.first_chunk() + error_event(error))
    assert (caught.value.message, caught.value.code) == (error.message, error.code)


async def test_end_without_done_is_a_lost_connection() -> None:
    with pytest.raises(Unreachable) as caught:
        await events(ANSWER.first_chunk() + ANSWER.delta_chunk("half"))
    assert caught.value.code == "connection_lost"


@pytest.mark.parametrize("raw", [b"data: {\n\n", b"data: 5\n\n"])
async def test_nonsense_is_an_error_of_ours(raw: bytes) -> None:
    with pytest.raises(MeshnetError):
        await events(raw)


async def test_ids_multiple_data_lines_and_comments() -> None:
    raw = b": hello\nid: 7\nevent: x\ndata: a\ndata: b\n\n: c\n\ndata:d\n\n"
    assert [event async for event in read_events(lines(raw))] == [Sse("a\nb", "7", "x"), Sse("d")]


async def test_endless_event_is_cut() -> None:
    with pytest.raises(MeshnetError, match="bytes"):
        await events(b"data: " + b"x" * (MAX_EVENT_BYTES + 1) + b"\n\n")
