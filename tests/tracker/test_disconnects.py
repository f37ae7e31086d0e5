"""Who hangs up is heard on every node; who reads too slowly is gone; who stops the tracker is told."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta
from meshnet.domain.errors import Overloaded
from meshnet.wire import api
from meshnet.wire.messages import Delta
from tests.tracker.fake_head import Talk, whole_text
from tests.tracker.running import MODEL, Running, body, run_tracker


async def endless(talk: Talk) -> None:
    await talk.say(3)
    await talk.hang()


async def test_left_stream_is_cancelled_at_the_head(running: Running) -> None:
    head = await running.head(1)
    head.script = endless
    async with running.client.chat(body()) as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.text:
                break
    await head.until(lambda: bool(head.cancels), 1.0)
    assert head.cancels[0].session == head.generated[0].session
    assert (await running.client.calls()).calls[0].outcome == "cancelled"
    assert running.in_flight == 0


async def test_stream_cancelled_twice_is_still_hung_up(running: Running) -> None:
    head = await running.head(1)
    head.script = endless
    began = asyncio.Event()

    async def read() -> None:
        async with running.client.chat(body()) as stream:
            async for event in stream:
                if isinstance(event, TextDelta) and event.text:
                    began.set()

    task = asyncio.get_running_loop().create_task(read())
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    await head.until(lambda: bool(head.cancels), 1.0)


async def test_whole_answer_is_cancelled_when_its_client_hangs_up(running: Running) -> None:
    head = await running.head(1)
    head.script = endless
    async with open_http() as http:
        ask = asyncio.get_running_loop().create_task(http.post(running.url + api.CHAT, json=body()))
        await head.until(lambda: bool(head.generated))
        ask.cancel()
        await asyncio.wait((ask,))
    await head.until(lambda: bool(head.cancels), 1.0)


async def test_client_gone_before_the_first_token_is_cancelled(running: Running) -> None:
    head = await running.head(1)
    head.script = Talk.hang
    async with open_http() as http:
        ask = asyncio.get_running_loop().create_task(http.post(running.url + api.CHAT, json=body(stream=True)))
        await head.until(lambda: bool(head.generated))
        ask.cancel()
        await asyncio.wait((ask,))
    await head.until(lambda: bool(head.cancels), 1.0)


async def test_reader_that_takes_nothing_is_gone() -> None:
    async with run_tracker(timeout_write=0.2) as running:
        head = await running.head(1)

        async def flood(talk: Talk) -> None:
            g = talk.generate
            while not talk.cancelled.is_set():
                await talk.send(Delta(session=g.session, attempt=g.attempt, text="x" * 30_000, token_ids=(1,)))
                await asyncio.sleep(0)

        head.script = flood
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        content = httpx.Request("POST", running.url, json=body(stream=True)).read()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content) + content
        )
        await writer.drain()
        await head.until(lambda: bool(head.cancels), 20.0)
        assert running.in_flight == 0
        writer.close()
        del reader


async def test_stop_tells_streams_and_refuses_new_calls() -> None:
    async with run_tracker() as running:
        head = await running.head(1)
        head.script = endless
        with pytest.raises(Overloaded, match="stopping") as caught:
            async with running.client.chat(body()) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta) and event.text:
                        await running.tracker.stop()
        assert caught.value.code == "shutting_down"
        with pytest.raises(Overloaded):
            await running.client.ask(body())
        await head.until(lambda: bool(head.cancels), 1.0)


async def test_official_client_lists_chats_streams_and_stops_midway(running: Running) -> None:
    head = await running.head(1)
    http = httpx.AsyncClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", http_client=http) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        ask = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "seed": 1}
        answer = await client.chat.completions.create(**ask)
        assert answer.choices[0].message.content == whole_text(1, 8)
        assert answer.usage is not None and answer.usage.total_tokens == 13
        stream = await client.chat.completions.create(**ask, stream=True)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text) == whole_text(1, 8)
        head.script = endless
        stopped = await client.chat.completions.create(**ask, stream=True)
        async for chunk in stopped:
            if chunk.choices[0].delta.content:
                break
        await stopped.close()
        await head.until(lambda: bool(head.cancels), 1.0)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**{**ask, "temperature": 9.0})
        assert caught.value.body["param"] == "temperature"  # type: ignore[index]


async def test_many_hang_up_and_nothing_is_left(running: Running) -> None:
    head = await running.head(1)
    head.script = endless

    async def one(after: int) -> None:
        async with running.client.chat(body(seed=after)) as stream:
            seen = 0
            async for event in stream:
                seen += isinstance(event, TextDelta)
                if seen > after % 2:
                    return

    for _ in range(5):
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))
    await head.until(lambda: len(head.cancels) == 100, 5.0)
    assert running.in_flight == 0 and len(running.tracker.attempts) == 0
    assert not running.tracker.wall.running
