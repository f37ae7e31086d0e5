"""Where the console's facts come from: the seam between the app and the typed client. Tests hand in a canned one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from meshnet.domain.chat import ChatMessage
from meshnet.wire.routing import EventMessage, ExplainResponse
from meshnet.wire.status import Snapshot


@dataclass(frozen=True, slots=True)
class ChatAsk:
    """One question. ``route`` pins (node ids); ``seed`` makes two runs comparable."""

    model: str
    messages: tuple[ChatMessage, ...]
    route: tuple[str, ...] = ()
    policy: str | None = None
    seed: int | None = None
    temperature: float = 0.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatStarted:
    call_id: str
    mode: str
    signature: str


@dataclass(frozen=True, slots=True)
class ChatText:
    text: str
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class ChatEnded:
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    mode: str = ""
    """How the route was chosen and which it was in the end: after a re-route not the one it began on."""
    signature: str = ""


ChatPiece = ChatStarted | ChatText | ChatEnded


class MeshSource(Protocol):
    """Everything the console can ask of one tracker. Failures are MeshnetErrors, never anything else."""

    url: str

    async def snapshot(self) -> Snapshot: ...

    def events(self, after: int) -> AsyncGenerator[EventMessage, None]:
        """Live events after this id, for ever. Raises NotFound where the tracker has none."""
        ...

    async def explain(self, model: str, route: tuple[str, ...], policy: str | None) -> ExplainResponse: ...

    def chat(self, ask: ChatAsk) -> AsyncGenerator[ChatPiece, None]:
        """Stream one answer. Closing the iterator closes the connection, which stops the generation."""
        ...

    async def close(self) -> None: ...
