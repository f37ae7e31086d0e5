"""OpenAI's chat dialect: a body to a ChatRequest, and answers back to chunks and completions.

Unknown fields are ignored, since real clients send extras; known fields that we do not serve (tools, response_format
other than text, n > 1, images) are refused by name, so that nobody waits for what will not come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from meshnet.domain.chat import ChatMessage, FinishReason, GenerationRequest, Role, Sampling
from meshnet.domain.errors import InvalidRequest, MeshnetError
from meshnet.wire import problem
from meshnet.wire.decode import decode_json
from meshnet.wire.messages import TokenLogprob

MAX_MESSAGES = 4096
"""Turns of one conversation; far above any context."""
MAX_STOPS = 16
MAX_STOP_CHARS = 512
"""Text is held back while it may be a stop string's beginning: long ones would make a stream jerk."""
MAX_TOP_LOGPROBS = 20
"""OpenAI's own bound."""
MAX_TOKENS = 1 << 24
"""Larger limits mean no limit; the head cuts to what the context has left."""
MAX_PIN_HOPS = 64

Number = float
"""JSON numbers: msgspec reads whole ones into floats too."""
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class _StreamOptions(Struct):
    include_usage: bool = False


class _ResponseFormat(Struct):
    type: str


class _Body(Struct):
    model: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[Number, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 20)] | None = None
    min_p: Annotated[Number, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    frequency_penalty: Annotated[Number, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[Number, Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    response_format: _ResponseFormat | None = None
    modalities: list[str] | None = None
    route: Annotated[list[str], Meta(max_length=MAX_PIN_HOPS)] | None = None
    route_policy: str | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat, understood: what to generate and how the client wants it back."""

    model: str
    generation: GenerationRequest
    seed_given: bool
    stream: bool = False
    include_usage: bool = False
    pin: tuple[str, ...] = ()
    route_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def as_dict(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def parse_chat_request(raw: bytes) -> ChatRequest:
    """Raises InvalidRequest whose ``param`` names the field."""
    body = decode_json(raw, _Body)
    _refuse_unsupported(body)
    messages = tuple(_message(turn, f"messages[{i}]") for i, turn in enumerate(body.messages))
    generation = GenerationRequest(
        messages=messages,
        sampling=_sampling(body),
        max_tokens=_max_tokens(body),
        stop=_stops(body.stop),
        ignore_eos=bool(body.ignore_eos),
    )
    return ChatRequest(
        model=body.model,
        generation=generation,
        seed_given=body.seed is not None,
        stream=bool(body.stream),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        pin=tuple(body.route or ()),
        route_policy=body.route_policy,
    )


def _refuse_unsupported(body: _Body) -> None:
    if body.n is not None and body.n != 1:
        raise InvalidRequest(f"n is {body.n}, but this server answers with one choice.", param="n")
    if body.tools or body.functions:
        raise InvalidRequest("This server does not support tools.", param="tools" if body.tools else "functions")
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("This server does not support tools.", param="tool_choice")
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequest("response_format must be text.", param="response_format")
    if body.modalities and body.modalities != ["text"]:
        raise InvalidRequest("modalities must be text.", param="modalities")
    if body.route is not None and not body.route:
        raise InvalidRequest("route is empty; leave it out to let the tracker choose.", param="route")


def _message(turn: dict[str, Any], at: str) -> ChatMessage:
    role = turn.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"{at}.role is {role!r}; it must be system, user or assistant.", param=f"{at}.role")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise InvalidRequest("This server does not support tools.", param=f"{at}.tool_calls")
    return ChatMessage(_ROLES[role], _text(turn.get("content"), role, f"{at}.content"))


def _text(content: Any, role: str, at: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{at} must be a string or a list of text parts.", param=at)
    return "".join(_part(part, f"{at}[{i}]") for i, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequest(f"{at} is {kind!r}; this server takes text parts only.", param=at)
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{at}.text must be a string.", param=f"{at}.text")
    return cast(str, part["text"])


def _max_tokens(body: _Body) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them.",
            param="max_completion_tokens",
        )
    wanted = new if new is not None else old
    return None if wanted is None else min(wanted, MAX_TOKENS)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings; at most {MAX_STOPS} are taken.", param="stop")
    if any(not s or len(s) > MAX_STOP_CHARS for s in stops):
        raise InvalidRequest(f"each stop string has 1 to {MAX_STOP_CHARS} characters.", param="stop")
    return stops


def _sampling(body: _Body) -> Sampling:
    return Sampling(
        temperature=_number(body.temperature, 1.0),
        top_p=_number(body.top_p, 1.0),
        top_k=max(body.top_k or 0, 0),
        min_p=_number(body.min_p, 0.0),
        seed=body.seed or 0,
        frequency_penalty=_number(body.frequency_penalty, 0.0),
        presence_penalty=_number(body.presence_penalty, 0.0),
        repetition_penalty=_number(body.repetition_penalty, 1.0),
        logit_bias=_logit_bias(body.logit_bias),
        logprobs=_logprobs(body),
    )


def _number(value: Number | None, default: float) -> float:
    number = default if value is None else float(value)
    return number if math.isfinite(number) else default


def _logit_bias(bias: dict[str, Number] | None) -> dict[int, float]:
    result: dict[int, float] = {}
    for token, value in (bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 8):
            raise InvalidRequest(f"logit_bias: {token!r} is not a token id.", param="logit_bias")
        result[int(token)] = float(value)
    return result


def _logprobs(body: _Body) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


@dataclass(frozen=True, slots=True)
class Answer:
    """Writes one call's chunks or completion: id, model and creation time are the same in all of them."""

    call_id: str
    model: str
    created: int
    """Unix seconds."""

    def first_chunk(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def delta_chunk(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        return self._chunk({"content": text}, None, logprobs)

    def last_chunk(self, finish_reason: FinishReason, meshnet: dict[str, Any] | None = None) -> bytes:
        return self._chunk({}, finish_reason, extra=meshnet)

    def usage_chunk(self, usage: Usage) -> bytes:
        return sse({**self._head("chat.completion.chunk"), "choices": [], "usage": usage.as_dict()})

    def completion(
        self,
        text: str,
        finish_reason: FinishReason,
        usage: Usage,
        logprobs: Sequence[TokenLogprob] | None = None,
        meshnet: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None if logprobs is None else {"content": [_logprob(lp) for lp in logprobs]},
            "finish_reason": finish_reason,
        }
        body = {**self._head("chat.completion"), "choices": [choice], "usage": usage.as_dict()}
        return msgspec.json.encode(body | ({"meshnet": meshnet} if meshnet else {}))

    def _chunk(
        self,
        delta: dict[str, Any],
        finish_reason: str | None,
        logprobs: Sequence[TokenLogprob] = (),
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": [_logprob(lp) for lp in logprobs]} if logprobs else None,
            "finish_reason": finish_reason,
        }
        body = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return sse(body | ({"meshnet": extra} if extra else {}))

    def _head(self, kind: Literal["chat.completion", "chat.completion.chunk"]) -> dict[str, Any]:
        return {
            "id": self.call_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"
"""A comment line: keeps the connection open while a long prompt is prefilled; SSE clients ignore it."""


def sse(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def error_event(error: MeshnetError) -> bytes:
    """An error after the first byte: the usual shape as an event; no [DONE] follows."""
    return sse(problem.body_of(error))


def _logprob(lp: TokenLogprob) -> dict[str, Any]:
    return {
        "token": lp.token,
        "logprob": lp.logprob,
        "bytes": list(lp.bytes),
        "top_logprobs": [
            {"token": token, "logprob": value, "bytes": list(token.encode("utf-8", "replace"))}
            for token, value in lp.top
        ],
    }
