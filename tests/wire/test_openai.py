"""The dialect: what clients really send, what is refused and by which name, what goes back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidRequest, NodeFailed
from meshnet.wire.messages import TokenLogprob
from meshnet.wire.openai import DONE, MAX_TOKENS, Answer, ChatRequest, Usage, error_event, parse_chat_request

USER = {"role": "user", "content": "hi"}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(msgspec.json.encode({"model": "m", "messages": [USER], **fields}))


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def test_defaults_are_openais() -> None:
    chat = parse()
    sampling = chat.generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.logprobs) == (1.0, 1.0, 0, None)
    assert (chat.stream, chat.include_usage, chat.seed_given, chat.generation.max_tokens) == (False, False, False, None)


def test_every_field_is_taken_over() -> None:
    chat = parse(
        temperature=0, top_p=0.5, top_k=40, min_p=0.1, seed=-3, frequency_penalty=1, presence_penalty=-1,
        repetition_penalty=1.1, logit_bias={"5": -100}, logprobs=True, top_logprobs=3, stop="END", ignore_eos=True,
        stream=True, stream_options={"include_usage": True}, route=["a.0-9"], route_policy="hop", user="someone",
    )  # fmt: skip
    s = chat.generation.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.seed) == (0.0, 0.5, 40, 0.1, -3)
    assert (s.frequency_penalty, s.presence_penalty, s.repetition_penalty) == (1.0, -1.0, 1.1)
    assert (s.logit_bias, s.logprobs, s.is_greedy) == ({5: -100.0}, 3, True)
    assert (chat.generation.stop, chat.generation.ignore_eos) == (("END",), True)
    assert (chat.stream, chat.include_usage, chat.pin, chat.route_policy) == (True, True, ("a.0-9",), "hop")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(("value", "kept"), [(1, 1), (5, 5), (10**9, MAX_TOKENS), (10**30, MAX_TOKENS)])
def test_token_limit_by_either_name(field: str, value: int, kept: int) -> None:
    raw = f'{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}'
    assert parse_chat_request(raw.encode()).generation.max_tokens == kept


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "5"])
def test_impossible_token_limit_names_its_field(field: str, value: object) -> None:
    assert refused(**{field: value}).param == field


def test_two_token_limits_must_agree() -> None:
    assert parse(max_tokens=5, max_completion_tokens=5).generation.max_tokens == 5
    assert refused(max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"


@pytest.mark.parametrize("role", ["user", "system", "assistant", "developer"])
def test_text_parts_are_joined_with_nothing_between(role: str) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": ""}]
    parts.append({"type": "text", "text": " of France?"})
    chat = parse(messages=[{"role": role, "content": parts}, USER])
    assert chat.generation.messages[0].content == "What is the capital of France?"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([], "messages[0].content"),
        (None, "messages[0].content"),
        (5, "messages[0].content"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "messages[0].content[0]"),
        ([{"type": "text", "text": "a"}, {"type": "hologram"}], "messages[0].content[1]"),
        (["plain"], "messages[0].content[0]"),
        ([{"type": "text", "text": 5}], "messages[0].content[0].text"),
    ],
)
def test_content_that_is_no_text_is_refused_where_it_stands(content: object, param: str) -> None:
    assert refused(messages=[{"role": "user", "content": content}]).param == param


def test_assistant_turn_may_be_empty() -> None:
    chat = parse(messages=[USER, {"role": "assistant", "content": None}, USER])
    assert chat.generation.messages[1].content == ""


@pytest.mark.parametrize("role", ["tool", "function", "", "User", None, 5])
def test_unknown_role_is_refused(role: object) -> None:
    assert refused(messages=[{"role": role, "content": "x"}]).param == "messages[0].role"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"tools": [{}], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"n": 2}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"route": []}, "route"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"model": None}, "model"),
    ],
)
def test_refusal_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none"},
        {"tools": None, "tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"n": 1},
        {"stream_options": None},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True},
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True},
    ],
)
def test_what_real_clients_send_along_is_taken(fields: dict[str, Any]) -> None:
    parse(**fields)


def test_usage_is_for_streams_that_ask() -> None:
    assert not parse(stream_options={"include_usage": True}).include_usage
    assert not parse(stream=True, stream_options={}).include_usage


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"5",
        b"null",
        b"\xff\xfe",
        b'{"messages":{"messages":[]}}',
        b"[" * 10_000,
        b'{"model":"m","messages":' + b'[{"a":' * 10_000,
        b'{"model":"m","messages":[],"temperature":NaN}',
    ],
)
def test_broken_bodies_are_the_clients_fault(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat_request(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["messages", "stop", "route", "logit_bias", "stream_options", "response_format", "seed", "max_tokens", "tools"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_json_is_understood_or_refused(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    try:
        assert isinstance(parse_chat_request(body), ChatRequest)
    except InvalidRequest as error:
        assert error.message


ANSWER = Answer("call-1", "m", 1700000000)


def chunk(raw: bytes) -> dict[str, Any]:
    assert raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.count(b"\n") == 2
    return msgspec.json.decode(raw[6:])


def test_chunks_have_every_key_that_clients_look_for() -> None:
    first, delta, last = (
        chunk(raw) for raw in (ANSWER.first_chunk(), ANSWER.delta_chunk("a\n"), ANSWER.last_chunk("length", {"x": 1}))
    )
    for one in (first, delta, last):
        assert (one["id"], one["object"], one["created"], one["model"]) == (
            "call-1", "chat.completion.chunk", 1700000000, "m",
        )  # fmt: skip
        assert set(one["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert delta["choices"][0]["delta"] == {"content": "a\n"} and delta["choices"][0]["finish_reason"] is None
    assert last["choices"][0]["finish_reason"] == "length" and last["meshnet"] == {"x": 1}
    assert DONE == b"data: [DONE]\n\n"


def test_usage_chunk_has_no_choice() -> None:
    usage = chunk(ANSWER.usage_chunk(Usage(3, 4)))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_completion_is_whole_and_carries_logprobs_when_asked() -> None:
    logprob = TokenLogprob("a", -0.5, (97,), (("b", -1.0),))
    body = msgspec.json.decode(ANSWER.completion("a", "stop", Usage(1, 1), [logprob], {"mode": "scout"}))
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "a", "refusal": None}
    assert choice["logprobs"]["content"][0]["top_logprobs"] == [{"token": "b", "logprob": -1.0, "bytes": [98]}]
    assert msgspec.json.decode(ANSWER.completion("a", "stop", Usage(1, 1)))["choices"][0]["logprobs"] is None


def test_error_event_is_the_usual_shape() -> None:
    assert chunk(error_event(NodeFailed("node x broke", code="stalled"))) == {
        "error": {"message": "node x broke", "type": "server_error", "code": "stalled", "param": None}
    }
