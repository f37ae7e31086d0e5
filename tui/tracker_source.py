"""The console's source over the typed client: one tracker, one connection pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from meshnet.client.http import open_http
from meshnet.client.snapshot import take_snapshot
from meshnet.client.sse import Finish, TextDelta, UsageReport
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError
from meshnet.wire.routing import EventMessage, ExplainRequest, ExplainResponse
from meshnet.wire.status import Snapshot
from tui.source import ChatAsk, ChatEnded, ChatPiece, ChatStarted, ChatText


class TrackerSource:
    """``wall`` is Unix seconds, for display. ``key`` and ``ca_file`` are as ``open_http`` takes them."""

    def __init__(self, url: str, wall: Callable[[], float], key: str = "", ca_file: str = "") -> None:
        self._http = open_http(key, ca_file)
        self._client = TrackerClient(self._http, url)
        self._wall = wall
        self.url = self._client.url

    async def snapshot(self) -> Snapshot:
        return await take_snapshot(self._client, self.url, self._wall())

    async def events(self, after: int) -> AsyncGenerator[EventMessage, None]:
        try:
            async with self._client.events(after) as events:
                async for event in events:
                    yield event
        except msgspec.MsgspecError as error:
            raise MeshnetError(f"An event is not what a tracker says: {error}.", code="bad_answer") from None

    async def explain(self, model: str, route: tuple[str, ...], policy: str | None) -> ExplainResponse:
        return await self._client.explain(ExplainRequest(model=model, route=route, route_policy=policy))

    async def chat(self, ask: ChatAsk) -> AsyncGenerator[ChatPiece, None]:
        finish, usage = Finish(""), UsageReport(0, 0)
        async with self._client.chat(chat_body(ask)) as stream:
            yield ChatStarted(stream.call_id, stream.mode, stream.route)
            async for event in stream:
                match event:
                    case TextDelta(text=text) if text:
                        yield ChatText(text)
                    case Finish():
                        finish = event
                    case UsageReport():
                        usage = event
        yield _ended(finish, usage)

    async def close(self) -> None:
        await self._http.aclose()


def chat_body(ask: ChatAsk) -> dict[str, Any]:
    """The question in the dialect of the tracker's chat endpoint."""
    body: dict[str, Any] = {
        "model": ask.model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in ask.messages],
        "temperature": ask.temperature,
    }
    if ask.route:
        body["route"] = list(ask.route)
    for name, value in (("route_policy", ask.policy), ("seed", ask.seed), ("max_tokens", ask.max_tokens)):
        if value is not None:
            body[name] = value
    return body


def _ended(finish: Finish, usage: UsageReport) -> ChatEnded:
    mode, route = finish.meshnet.get("mode"), finish.meshnet.get("route")
    return ChatEnded(
        finish.reason or "stop",
        usage.prompt_tokens,
        usage.completion_tokens,
        mode if isinstance(mode, str) else "",
        route if isinstance(route, str) else "",
    )
