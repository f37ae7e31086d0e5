"""The plain path: a question in, an answer out, streaming and not."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from meshnet.client.http import open_http
from meshnet.client.sse import Finish, TextDelta, UsageReport
from meshnet.domain.errors import InvalidRequest, NoRoute, NotFound
from meshnet.wire import api
from tests.tracker.fake_head import Talk, answering, whole_text
from tests.tracker.running import MODEL, Running, body, claim, node_id_of, run_tracker


async def test_answer_is_whole_when_not_streaming(running: Running) -> None:
    head = await running.head(1)
    answer = await running.client.ask(body())
    assert answer.text == whole_text(1, 8)
    assert (answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("stop", 5, 8)
    assert answer.meshnet["route"] == f"{MODEL} | {head.node_id}[0-29]"
    assert running.in_flight == 0


async def test_stream_gives_role_text_finish_and_usage(running: Running) -> None:
    await running.head(1)
    async with running.client.chat(body()) as stream:
        events = [event async for event in stream]
    assert events[0] == TextDelta("", "assistant")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == whole_text(1, 8)
    assert [e.reason for e in events if isinstance(e, Finish)] == ["stop"]
    assert events[-1] == UsageReport(5, 8)
    assert stream.mode == "scout" and stream.call_id.startswith("call-")


async def raw_stream(url: str, **fields: object) -> tuple[httpx.Response, list[dict]]:
    async with open_http() as http:
        response = await http.post(url + api.CHAT, json=body(stream=True, **fields))
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return response, [msgspec.json.decode(line) for line in lines]


async def test_chunks_are_what_third_party_clients_expect(running: Running) -> None:
    await running.head(1)
    response, chunks = await raw_stream(running.url)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers[api.ATTEMPT] == "1" and response.headers[api.ROUTE].startswith(MODEL)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("finish_reason" in chunk["choices"][0] for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert not any(chunk.get("usage") for chunk in chunks)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": True}, True),
        ({"include_usage": True, "continuous_usage_stats": True}, True),
    ],
)
async def test_usage_comes_only_when_asked_for(running: Running, options: dict | None, wanted: bool) -> None:
    await running.head(1)
    _, chunks = await raw_stream(running.url, stream_options=options)
    last = chunks[-1]
    assert (last["choices"] == []) == wanted
    if wanted:
        assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


async def test_seed_is_drawn_by_the_tracker_when_the_client_gives_none(running: Running) -> None:
    head = await running.head(1)
    for _ in range(2):
        await running.client.ask({k: v for k, v in body().items() if k != "seed"})
    seeds = [g.request.sampling.seed for g in head.generated]
    assert len(set(seeds)) == 2 and all(seeds)


async def test_unknown_model_is_404_whether_streaming_or_not(running: Running) -> None:
    await running.head(1)
    for stream in (False, True):
        for name in ("nope", "", MODEL.upper(), MODEL + " ", "a/b/c"):
            async with open_http() as http:
                response = await http.post(running.url + api.CHAT, json=body(model=name, stream=stream))
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"
    with pytest.raises(NotFound):
        await running.client.model("nope")
    assert (await running.client.model(MODEL)).ready


async def test_no_route_names_the_uncovered_layers(running: Running) -> None:
    await running.client.register(claim(1, 0, 9))
    await running.client.register(claim(2, 20, 29))
    with pytest.raises(NoRoute, match="layers 10-19 of 30"):
        await running.client.ask(body())
    assert running.in_flight == 0


async def test_model_whose_nodes_left_has_no_route(running: Running) -> None:
    await running.client.register(claim(1, 0, 29))
    await running.client.leave(node_id_of(1, 0, 29), epoch=1)
    with pytest.raises(NoRoute, match="layers 0-29 are held by no live node"):
        await running.client.ask(body())


async def test_loading_nodes_serve_nothing(running: Running) -> None:
    await running.client.register(claim(1, 0, 29, state="loading"))
    with pytest.raises(NoRoute):
        await running.client.ask(body())


async def test_pinned_route_is_taken_and_said(running: Running) -> None:
    head = await running.head(1)
    await running.head(2)
    pin = [head.node_id]
    async with running.client.chat(body(route=pin)) as stream:
        assert stream.mode == "pinned"
        async for _ in stream:
            pass
    assert len(head.generated) == 1
    hops = [(h.start_layer, h.end_layer) for h in head.generated[0].hops]
    assert hops == [(0, 29)]


async def test_overlapping_pin_enters_the_second_node_inside_its_shard(running: Running) -> None:
    head = await running.head(1, 0, 14)
    await running.client.register(claim(2, 0, 29))
    await running.client.ask(body(route=[head.node_id, node_id_of(2, 0, 29)]))
    assert [(h.start_layer, h.end_layer) for h in head.generated[0].hops] == [(0, 14), (15, 29)]


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        (["nobody.0-29"], "nobody.0-29 .* not live"),
        ([node_id_of(1, 0, 14)], "layers 15-29 are missing"),
        ([node_id_of(2, 15, 29)], "layer 0 comes next"),
        ([node_id_of(1, 0, 14)] * 2, "twice"),
    ],
)
async def test_bad_pin_says_which(running: Running, pin: list[str], message: str) -> None:
    await running.client.register(claim(1, 0, 14))
    await running.client.register(claim(2, 15, 29))
    with pytest.raises(InvalidRequest, match=message) as caught:
        await running.client.ask(body(route=pin))
    assert caught.value.param == "route"


async def test_long_prompt_is_400_before_any_sse_byte(running: Running) -> None:
    head = await running.head(1)

    async def script(talk: Talk) -> None:
        await talk.fail("context_length_exceeded", "The prompt has 9030 tokens, the context holds 8192.", param=None)

    head.script = script
    for stream in (False, True):
        async with open_http() as http:
            response = await http.post(running.url + api.CHAT, json=body(stream=stream))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "9030" in response.json()["error"]["message"] and "8192" in response.json()["error"]["message"]
    assert running.in_flight == 0


async def test_headers_come_early_and_keepalives_follow_while_prefill_is_silent() -> None:
    async with run_tracker() as running:
        head = await running.head(1)
        go = asyncio.Event()

        async def script(talk: Talk) -> None:
            await go.wait()
            await answering(3)(talk)

        head.script = script
        async with open_http() as http, http.stream("POST", running.url + api.CHAT, json=body(stream=True)) as response:
            # Nothing was said yet, and the headers are here.
            assert response.status_code == 200 and not go.is_set()
            go.set()
            text = "".join([piece async for piece in response.aiter_text()])
        assert text.endswith("data: [DONE]\n\n")


async def test_late_error_of_a_stream_is_an_event_without_done() -> None:
    async with run_tracker() as running:
        head = await running.head(1)

        async def script(talk: Talk) -> None:
            await talk.say(2)
            await talk.fail("internal_error", "the shard broke")

        head.script = script
        async with open_http() as http:
            response = await http.post(running.url + api.CHAT, json=body(stream=True))
        assert response.status_code == 200
        last = response.text.strip().split("\n\n")[-1]
        error = msgspec.json.decode(last.removeprefix("data: "))["error"]
        assert error["code"] == "internal_error" and head.node_id in error["message"]
        assert "[DONE]" not in response.text and 'finish_reason":"stop' not in response.text


async def test_body_errors_are_json_whatever_comes(running: Running) -> None:
    async with open_http() as http:
        for content, status in ((b"", 400), (b"{", 400), (b"[]", 400), (b"\xff", 400), (b"x" * (5 << 20), 413)):
            response = await http.post(
                running.url + api.CHAT, content=content, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "code", "param"}
        got = await http.get(running.url + api.CHAT)
        assert got.status_code == 405 and got.json()["error"]["code"] == "method_not_allowed"
