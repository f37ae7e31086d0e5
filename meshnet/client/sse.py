"""Server-sent events as they come over the line, and the chat stream read from them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshnet.domain.errors import MeshnetError, Unreachable
from meshnet.wire import problem

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""One event: the largest is a chunk with 20 alternatives a token, some KiB. Beyond this the peer is no tracker."""


@dataclass(frozen=True, slots=True)
class Sse:
    """One event: ``id`` and ``event`` as the server named them, "" if it did not."""

    data: str
    id: str = ""
    event: str = ""


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[Sse]:
    """Events of a stream of lines; comments (keep-alives) are passed over. Raises MeshnetError for an endless one."""
    data: list[str] = []
    fields = {"id": "", "event": ""}
    size = 0
    async for line in lines:
        size += len(line)
        if size > MAX_EVENT_BYTES:
            raise MeshnetError(f"An event of more than {MAX_EVENT_BYTES} bytes came.", code="bad_answer")
        if not line:
            if data:
                yield Sse("\n".join(data), **fields)
            data, fields, size = [], {"id": "", "event": ""}, 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name in fields:
            fields[name] = value


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer. ``text`` is "" in the first one, which only says that the assistant speaks."""

    text: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete. ``meshnet`` is what the tracker adds: call_id, route, mode, why, attempts, timings."""

    reason: str
    meshnet: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Came because it was asked for."""

    prompt_tokens: int
    completion_tokens: int


ChatEvent = TextDelta | Finish | UsageReport


async def chat_events(events: AsyncIterator[Sse], url: str) -> AsyncIterator[ChatEvent]:
    """A chat stream up to its [DONE]. An error event is raised as the MeshnetError it carries; an end without [DONE]
    as Unreachable(code="connection_lost")."""
    done = False
    async for event in events:
        if event.data == "[DONE]":
            done = True  # read on: an answer read to its end gives its connection back
            continue
        for part in _parse(event.data):
            yield part
    if not done:
        raise Unreachable(f"{url} ended the answer before its end.", code="connection_lost")


def _parse(data: str) -> list[ChatEvent]:
    try:
        chunk = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise MeshnetError(f"A chunk is not JSON: {error}.", code="bad_answer") from None
    if not isinstance(chunk, dict):
        raise MeshnetError("A chunk is no object.", code="bad_answer")
    if chunk.get("error"):
        raise problem.error_in_event(data.encode())
    parts: list[ChatEvent] = []
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content") is not None:
            parts.append(TextDelta(delta["content"], delta.get("role")))
        if choice.get("finish_reason"):
            parts.append(Finish(choice["finish_reason"], chunk.get("meshnet") or {}))
    if usage := chunk.get("usage"):
        parts.append(UsageReport(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)))
    return parts
