"""What is wrong in a mesh, worst first, each with the view and row where it is seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshnet.domain import errors
from meshnet.domain.nodes import HEARTBEAT_INTERVAL_S, SUSPECT_AFTER_MISSED
from meshnet.wire.routing import EventMessage
from meshnet.wire.status import Snapshot
from tui.draw import numbers
from tui.draw.spans import visible

RECENT_CALLS = 20
"""Failed calls older than this many others are history, not a problem."""

CALL_PASSES_S = 900.0
"""A call that failed longer ago is history too, where few others come: as long as the console's own memory."""
CLIENTS_OWN = frozenset(
    {"model_not_found", "chat_template", "body_too_large"}
    | {
        kind.code
        for kind in (
            errors.InvalidRequest,
            errors.ContextLengthExceeded,
            errors.BadPin,
            errors.NotFound,
            errors.Forbidden,
        )
    }
)
"""Codes of calls that whoever asked got wrong (a name mistyped, a prompt too long): nothing is wrong with the mesh."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``view`` and ``row`` say where to look; ``key`` stays the same while the problem lasts."""

    key: str
    text: str
    view: str
    row: str = ""
    weight: int = 0
    """Higher is worse."""


def find_problems(snapshot: Snapshot, events: tuple[EventMessage, ...] = ()) -> tuple[Problem, ...]:
    """Worst first; the same snapshot gives the same list."""
    found = [*_coverage(snapshot), *_nodes(snapshot), *_calls(snapshot), *_tracker(snapshot)]
    found.sort(key=lambda problem: (-problem.weight, problem.key))
    return tuple(found)


def _coverage(snapshot: Snapshot) -> Iterator[Problem]:
    for model in snapshot.coverage:
        key = visible(model.model_key)
        if model.gaps:
            text = f"{key}: layers {', '.join(model.gaps)} are held by no node, so it cannot answer"
            yield Problem(f"gap:{key}", text, "layers", f"hosts:{model.model_key}", 90)
        elif model.single:
            text = f"{key}: layers {', '.join(model.single)} are on one node only"
            yield Problem(f"single:{key}", text, "layers", f"hosts:{model.model_key}", 20)


def _nodes(snapshot: Snapshot) -> Iterator[Problem]:
    for node in snapshot.nodes:
        name = visible(node.name)
        if node.ejected_for_s > 0:
            text = f"{name} is ejected for another {numbers.coarse(node.ejected_for_s)} after {node.failures} failures"
            yield Problem(f"ejected:{node.node_id}", text, "nodes", node.node_id, 80)
        elif node.suspect or node.heartbeat_age_s > HEARTBEAT_INTERVAL_S * SUSPECT_AFTER_MISSED:
            text = f"{name} is suspect: no heartbeat for {numbers.coarse(node.heartbeat_age_s)}"
            yield Problem(f"suspect:{node.node_id}", text, "nodes", node.node_id, 70)
        elif node.health not in ("ok", ""):
            yield Problem(f"health:{node.node_id}", f"{name}: {visible(node.health)}", "nodes", node.node_id, 60)


def _calls(snapshot: Snapshot) -> Iterator[Problem]:
    for call in snapshot.calls[:RECENT_CALLS]:
        passed = snapshot.taken_at - call.accepted_at > CALL_PASSES_S
        if call.outcome == "failed" and call.error_code not in CLIENTS_OWN and not passed:
            why = visible(call.error_message or call.error_code or "no reason given")
            text = f"call {visible(call.call_id)[-8:]} failed: {why}"
            yield Problem(f"call:{call.call_id}", text, "calls", call.call_id, 50)


def _tracker(snapshot: Snapshot) -> Iterator[Problem]:
    stats = snapshot.stats
    if stats and stats.database != "ok":
        yield Problem("database", f"tracker's database: {visible(stats.database)}", "models", "", 65)
    for peer in stats.peers if stats else ():
        if not peer.up:
            text = f"peer tracker {visible(peer.url)} is not heard: {visible(peer.error) or 'no answer'}"
            yield Problem(f"peer:{peer.url}", text, "models", "", 40)
