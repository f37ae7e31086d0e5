"""One question to the mesh: its answer as it comes, and what it took.

Knows nothing of terminals; ``write`` is handed the text, piece by piece.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshnet.client.sse import Finish, TextDelta, UsageReport
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError, NoRoute, NotFound
from meshnet.domain.ids import short_node_id
from meshnet.wire.messages import NodeMessage

Message = dict[str, str]

_NODE_ID = re.compile(r"\b[a-z0-9]{8,64}\.\d{1,4}-\d{1,4}\b")
_BROKE = {
    **dict.fromkeys(("unreachable", "link_closed", "link_lost", "silent", "session_lost"), "died"),
    **dict.fromkeys(("shutting_down", "draining"), "left"),
    "stalled": "stalled",
}
"""Codes of an attempt's end in a word."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to answer. None and empty mean that the mesh chooses."""

    model: str | None = None
    route: tuple[str, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    system: str | None = None
    route_policy: str | None = None


@dataclass(slots=True)
class Answer:
    """What came. Times in seconds at this end; ``error`` is why it ended early, None when it is whole."""

    model: str
    text: str = ""
    finish_reason: str | None = None
    call_id: str = ""
    mode: str = ""
    route: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    stopped: bool = False
    error: MeshnetError | None = None
    meshnet: dict[str, Any] = field(default_factory=dict)

    @property
    def tps(self) -> float | None:
        """Tokens/s after the first one; None where there was but one."""
        if self.completion_tokens is None or self.ttft_s is None or self.duration_s is None:
            return None
        decoding_s = self.duration_s - self.ttft_s
        return (self.completion_tokens - 1) / decoding_s if self.completion_tokens > 1 and decoding_s > 0 else None


async def ask(
    tracker: TrackerClient, messages: Sequence[Message], wishes: Wishes, answer: Answer, write: Callable[[str], None]
) -> None:
    """Fill ``answer`` while it comes. A failure before the first piece is raised; a later one is ``answer.error``.
    Cancelled, it stops the generation and keeps what came."""
    began = time.monotonic()
    try:
        async with tracker.chat(_body(messages, wishes, answer.model)) as stream:
            answer.call_id, answer.mode, answer.route = stream.call_id, stream.mode, stream.route
            async for event in stream:
                _take(answer, event, time.monotonic() - began, write)
    except MeshnetError as error:
        if answer.ttft_s is None:
            raise
        answer.error = error
    finally:
        answer.duration_s = time.monotonic() - began


async def choose_model(tracker: TrackerClient, wanted: str | None) -> str:
    """The wanted model, or the first that can answer. Raises NotFound with what there is, or NoRoute."""
    models = (await tracker.models()).data
    names = [model.id for model in models]
    if wanted is not None:
        if wanted not in names:
            there = f"Served here: {', '.join(names)}" if names else "No node serves a model yet"
            raise NotFound(f"No model {wanted!r} in this mesh. {there}.", code="model_not_found", param="model")
        return wanted
    if not names:
        raise NoRoute(f"No node serves a model at {tracker.url} yet. Start some with: meshnet up")
    return next((model.id for model in models if model.ready), names[0])


async def resolve_route(tracker: TrackerClient, route: Sequence[str]) -> tuple[str, ...]:
    """Names of nodes as node_ids; node_ids stay. Raises NotFound for what is no node of the mesh, or several."""
    if not route:
        return ()
    nodes = (await tracker.nodes()).nodes
    return tuple(_resolve(word, nodes) for word in route)


async def with_node_ids(tracker: TrackerClient, wishes: Wishes) -> Wishes:
    return replace(wishes, route=await resolve_route(tracker, wishes.route))


async def names_of(tracker: TrackerClient, call_id: str = "") -> dict[str, str]:
    """Names by node_id, of the live nodes and of those that the call went over, dead by now or not. Only for display:
    what the tracker does not say is left out."""
    names: dict[str, str] = {}
    with contextlib.suppress(MeshnetError):
        if call_id:
            attempts = (await tracker.call(call_id)).attempts
            names |= {hop.node_id: hop.name for attempt in attempts for hop in attempt.hops if hop.name}
    with contextlib.suppress(MeshnetError):
        names |= {node.node_id: node.name for node in (await tracker.nodes()).nodes if node.name}
    return names


async def with_names(tracker: TrackerClient, message: str, call_id: str = "") -> str:
    """A message with the names that people gave in the place of node_ids. Asks only where there is one: a tracker that
    is lost is not asked for names."""
    if _NODE_ID.search(message) is None:
        return message
    names = await names_of(tracker, call_id)
    return _NODE_ID.sub(lambda found: names.get(found[0]) or found[0], message)


def reroutes(answer: Answer, names: Mapping[str, str]) -> str:
    """``rerouted once: n2 died``; "" when the first route held."""
    broken = answer.meshnet.get("rerouted") or []
    if not broken:
        return ""
    times = {1: "once", 2: "twice"}.get(len(broken), f"{len(broken)} times")
    return f"rerouted {times}: {', '.join(_what_broke(one, names) for one in broken)}"


def _what_broke(one: Mapping[str, Any], names: Mapping[str, str]) -> str:
    node_id, code = str(one.get("node") or ""), str(one.get("code") or "")
    who = names.get(node_id) or (short_node_id(node_id) if node_id else "a node")
    return f"{who} {_BROKE.get(code, f'failed ({code})')}"


def short_route(signature: str, names: dict[str, str]) -> str:
    """``model | id[0-14] -> id[15-29]`` as people read it: ``n1[0-14] -> n2[15-29]``."""
    _, _, hops = signature.rpartition(" | ")
    return " -> ".join(_short_hop(hop.strip(), names) for hop in hops.split("->")) if hops else ""


def _take(answer: Answer, event: object, at_s: float, write: Callable[[str], None]) -> None:
    match event:
        case TextDelta(text=text) if text:
            answer.ttft_s = at_s if answer.ttft_s is None else answer.ttft_s
            answer.text += text
            write(text)
        case Finish(reason=reason, meshnet=extra):
            answer.finish_reason, answer.meshnet = reason, extra
            answer.mode = str(extra.get("mode") or answer.mode)
            answer.route = str(extra.get("signature") or extra.get("route") or answer.route)
        case UsageReport(prompt_tokens=prompt, completion_tokens=completion):
            answer.prompt_tokens, answer.completion_tokens = prompt, completion


def _body(messages: Sequence[Message], wishes: Wishes, model: str) -> dict[str, Any]:
    system = [{"role": "system", "content": wishes.system}] if wishes.system else []
    body = {
        "model": model,
        "messages": [*system, *messages],
        "temperature": wishes.temperature,
        "max_tokens": wishes.max_tokens,
        "seed": wishes.seed,
        "route": list(wishes.route) or None,
        "route_policy": wishes.route_policy,
    }
    return {key: value for key, value in body.items() if value is not None}


def _resolve(word: str, nodes: Sequence[NodeMessage]) -> str:
    if any(node.node_id == word for node in nodes):
        return word
    found = [n.node_id for n in nodes if n.name == word or short_node_id(n.node_id) == word or n.wallet == word]
    if len(found) > 1:
        raise NotFound(f"{word!r} means {len(found)} nodes: {', '.join(found)}. Give a node_id.", param="route")
    if not found:
        there = ", ".join(sorted(node.name or node.node_id for node in nodes)) or "none"
        raise NotFound(f"No node is called {word!r} here. Nodes: {there}.", code="bad_route", param="route")
    return found[0]


def _short_hop(hop: str, names: dict[str, str]) -> str:
    node_id, bracket, layers = hop.partition("[")
    return f"{names.get(node_id) or short_node_id(node_id)}{bracket}{layers}"
