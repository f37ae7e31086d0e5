"""The tracker's interface, typed: what nodes, the command line and the console ask of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from meshnet.client.http import ANSWER, NOBODY, Credentials, Door, Reading
from meshnet.client.sse import ChatEvent, chat_events, read_events
from meshnet.domain.errors import MeshnetError
from meshnet.wire import api
from meshnet.wire.demand import (
    AssignmentRequest,
    AssignmentResponse,
    GossipMessage,
    StatsResponse,
    UsageResponse,
)
from meshnet.wire.messages import (
    CoverageResponse,
    Health,
    HeartbeatRequest,
    HeartbeatResponse,
    ModelMessage,
    ModelsResponse,
    NodesResponse,
    RegisterRequest,
    RegisterResponse,
)
from meshnet.wire.routing import (
    CallMessage,
    CallsResponse,
    EventMessage,
    ExplainRequest,
    ExplainResponse,
    RoutingResponse,
)

HINT = "start it with: meshnet up"
HINT_ELSEWHERE = "check the address, and that a tracker runs there"


class ChatStream:
    """An answer as it comes: iterate once. The headers say which call, route and mode it is."""

    def __init__(self, reading: Reading, url: str) -> None:
        self.call_id = reading.headers.get(api.CALL_ID, "")
        self.route = reading.headers.get(api.ROUTE, "")
        """Signature of the route that began the answer; "" if the headers went out before one was chosen."""
        self.mode = reading.headers.get(api.MODE, "")
        self._reading = reading
        self._url = url

    def __aiter__(self) -> AsyncIterator[ChatEvent]:
        return chat_events(read_events(self._reading.lines()), self._url)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    call_id: str
    meshnet: dict[str, Any]


class TrackerClient:
    """``http`` is the process's one client (client/http.open_http); closing it is its owner's business."""

    def __init__(self, http: httpx.AsyncClient, url: str, credentials: Credentials = NOBODY) -> None:
        self._door = Door(http, url, "tracker", HINT if _is_here(url) else HINT_ELSEWHERE, credentials)

    @property
    def url(self) -> str:
        return self._door.url

    async def register(self, request: RegisterRequest) -> RegisterResponse:
        """A lease for this node. Registering again replaces the wallet's lease."""
        return await self._door.ask("POST", api.NODES, RegisterResponse, request)

    async def heartbeat(self, node_id: str, request: HeartbeatRequest) -> HeartbeatResponse:
        """Keep the lease. Raises NotFound when it ended, EpochChanged when it is another's by now: register again."""
        return await self._door.ask("POST", _path(api.HEARTBEAT, node_id=node_id), HeartbeatResponse, request)

    async def leave(self, node_id: str, epoch: int) -> None:
        """End this lease and no later one of the wallet."""
        await self._door.ask("DELETE", _path(api.NODE, node_id=node_id), type(None), params={"epoch": str(epoch)})

    async def assign(self, request: AssignmentRequest) -> AssignmentResponse:
        """Which layers would help most, reserved for this wallet. Raises InvalidRequest(code="budget_too_small")."""
        return await self._door.ask("POST", api.ASSIGNMENTS, AssignmentResponse, request)

    async def gossip(self, message: GossipMessage) -> GossipMessage:
        """Demand slices there and back, in one round trip."""
        return await self._door.ask("POST", api.GOSSIP, GossipMessage, message)

    async def nodes(self) -> NodesResponse:
        return await self._door.ask("GET", api.NODES, NodesResponse)

    async def models(self) -> ModelsResponse:
        return await self._door.ask("GET", api.MODELS, ModelsResponse)

    async def model(self, model_key: str) -> ModelMessage:
        return await self._door.ask("GET", _path(api.MODEL, model_key=model_key), ModelMessage)

    async def coverage(self, model_key: str | None = None) -> CoverageResponse:
        return await self._door.ask("GET", api.COVERAGE, CoverageResponse, params=_model(model_key))

    async def routing(self, model_key: str | None = None) -> RoutingResponse:
        """What is learned of routes, and how the next requests will spread."""
        return await self._door.ask("GET", api.ROUTING, RoutingResponse, params=_model(model_key))

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """What the tracker would decide now, and why; nothing is sent or changed."""
        return await self._door.ask("POST", api.EXPLAIN, ExplainResponse, request)

    async def stats(self) -> StatsResponse:
        return await self._door.ask("GET", api.STATS, StatsResponse)

    async def usage(self, model_key: str | None = None, limit: int = 50) -> UsageResponse:
        """The ledger: sums by wallet and model, and the last ``limit`` rows."""
        params = {**(_model(model_key) or {}), "limit": str(limit)}
        return await self._door.ask("GET", api.USAGE, UsageResponse, params=params)

    async def calls(
        self,
        *,
        limit: int = 50,
        before: int | None = None,
        model: str | None = None,
        mode: str | None = None,
        node: str | None = None,
        outcome: str | None = None,
    ) -> CallsResponse:
        """The call wall, newest first; ``before`` is the last page's ``next_before``."""
        filters = {"before": before, "model": model, "mode": mode, "node": node, "outcome": outcome, "limit": limit}
        params = {name: str(value) for name, value in filters.items() if value is not None}
        return await self._door.ask("GET", api.CALLS, CallsResponse, params=params)

    async def call(self, call_id: str) -> CallMessage:
        return await self._door.ask("GET", _path(api.CALL, call_id=call_id), CallMessage)

    async def health(self) -> Health:
        return await self._door.ask("GET", api.HEALTH, Health)

    async def ready(self) -> bool:
        """Whether a model can answer now. Raises Unreachable when there is no tracker."""
        try:
            await self._door.ask("GET", api.READY, Health)
        except MeshnetError as error:
            if error.code == "not_ready":
                return False
            raise
        return True

    @contextlib.asynccontextmanager
    async def events(self, after: int | None = None) -> AsyncIterator[AsyncIterator[EventMessage]]:
        """Live events, first those after the id ``after``. The iterator ends by Unreachable when the line breaks: come
        back with the last id seen."""
        headers = None if after is None else {"Last-Event-ID": str(after)}
        async with self._door.stream("GET", api.EVENTS, headers=headers) as reading:
            yield _events(reading)

    @contextlib.asynccontextmanager
    async def chat(self, body: Mapping[str, Any]) -> AsyncIterator[ChatStream]:
        """Ask, streaming. Leaving the block early stops the generation on every node."""
        streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._door.stream("POST", api.CHAT, streaming) as reading:
            yield ChatStream(reading, self._door.url)

    async def ask(self, body: Mapping[str, Any]) -> ChatAnswer:
        """Ask and wait for the whole answer."""
        answer = await self._door.ask("POST", api.CHAT, dict[str, Any], {**body, "stream": False}, timeouts=ANSWER)
        choice, usage = answer["choices"][0], answer["usage"]
        return ChatAnswer(
            choice["message"]["content"],
            choice["finish_reason"],
            usage["prompt_tokens"],
            usage["completion_tokens"],
            answer["id"],
            answer.get("meshnet") or {},
        )


def _is_here(url: str) -> bool:
    """Whether the address is this machine's own, where a command can start what is missing."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _events(reading: Reading) -> AsyncIterator[EventMessage]:
    async for event in read_events(reading.lines()):
        yield msgspec.json.decode(event.data, type=EventMessage)


def _path(template: str, **values: str) -> str:
    return template.format(**{name: quote(value, safe="") for name, value in values.items()})


def _model(model_key: str | None) -> dict[str, str] | None:
    return None if model_key is None else {"model": model_key}
