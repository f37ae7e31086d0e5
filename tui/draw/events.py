"""Events: the problems that stand, first, then everything that happened, newest first."""

from __future__ import annotations

import msgspec

from meshnet.wire.routing import EventMessage
from tui.draw import numbers
from tui.draw.spans import Line, Span, Tone, cut, line, ruler, span, visible
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown, node_name
from tui.problems import Problem

COLUMNS = (
    Column("time", "TIME", 8),
    Column("kind", "EVENT", 16),
    Column("who", "WHO", 14, drop=2),
    Column("text", "WHAT", 20, grow=True),
)
PROBLEM_ROW = "problem:"
"""Prefix of the key of a standing problem's row."""
FIRST = float(1 << 60)
"""Rank of standing problems: above every event id."""


def columns(_shown: Shown) -> tuple[Column, ...]:
    return COLUMNS


def rows(shown: Shown, _width: int) -> list[Row]:
    count = len(shown.problems)
    standing = [_problem_row(problem, FIRST + count - i) for i, problem in enumerate(shown.problems)]
    return standing + [_event_row(shown, event) for event in shown.events]


def _problem_row(problem: Problem, rank: float) -> Row:
    cells: dict[str, Line] = {
        "time": line(("now", "strong")),
        "kind": line(("! problem", "bad" if problem.weight >= 50 else "warn")),
        "who": line((problem.view, "dim")),
        "text": line((problem.text, "")),
    }
    return Row(PROBLEM_ROW + problem.key, cells, {"time": rank, "kind": " problem"})


def _event_row(shown: Shown, event: EventMessage) -> Row:
    tone: Tone = "bad" if event.problem else "accent" if event.kind.startswith("node.") else ""
    sign = "! " if event.problem else "  "
    cells: dict[str, Line] = {
        "time": line((numbers.clock(event.at), "dim")),
        "kind": line((sign, "bad"), span(event.kind, tone)),
        "who": line(_who(shown, event)),
        "text": line(span(event.text or _figures(event))),
    }
    return Row(
        event_key(event),
        cells,
        {"time": event.at + event.id / 1e9, "kind": visible(event.kind)},
        words=visible(event.call_id),
    )


def _who(shown: Shown, event: EventMessage) -> Span:
    if event.node_id:
        return node_name(shown.snapshot, event.node_id), ""
    return (visible(event.call_id)[-10:], "dim") if event.call_id else span(event.model_key, "dim")


def _figures(event: EventMessage) -> str:
    return "  ".join(f"{name}={value}" for name, value in event.data.items())


def event_key(event: EventMessage) -> str:
    """Ids begin anew when a tracker does: with the time they are unique."""
    return f"event:{event.at}:{event.id}"


def _find(shown: Shown, key: str | None) -> EventMessage | None:
    return next((event for event in shown.events if event_key(event) == key), None)


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    problem = next((p for p in shown.problems if PROBLEM_ROW + p.key == key), None)
    if problem:
        return [
            ruler("problem", width),
            cut(line(" ", (problem.text, "strong")), width),
            line((f" enter shows it in {problem.view}", "dim")),
        ]
    event = _find(shown, key)
    if event is None:
        return [ruler("event", width), line(("nothing selected", "dim"))]
    said = [
        ruler(f"event {event.id}", width),
        line(" ", span(event.kind, "strong"), f"   {numbers.clock(event.at)}   ", _who(shown, event)),
    ]
    said += [line(" ", span(event.text))] if event.text else []
    said += [line((f" {visible(name)} ", "dim"), span(value)) for name, value in event.data.items()]
    return [cut(parts, width) for parts in said]


def details(shown: Shown, key: str, width: int) -> list[Line]:
    event = _find(shown, key)
    said = pane(shown, key, width)
    if event and event.call_id:
        said += [(), ruler("the same call", width)]
        same = [e for e in shown.events if e.call_id == event.call_id]
        said += [
            cut(line(f" {numbers.clock(e.at)}  ", span(e.kind, "accent"), "  ", span(e.text)), width)
            for e in reversed(same)
        ]
    return said


def head(shown: Shown, width: int) -> list[Line]:
    return []


def summary(shown: Shown) -> Line:
    count = len(shown.problems)
    return line(
        f"{numbers.count(len(shown.events), 'event')}, ",
        (numbers.count(count, "open problem"), "bad") if count else ("no open problem", "good"),
    )


def empty(shown: Shown) -> Line:
    return line(("no event yet" if shown.events_served else "events are not served by this tracker", "dim"))


def copies(shown: Shown, key: str) -> dict[str, str]:
    event = _find(shown, key)
    url = shown.snapshot.trackers[0].url if shown.snapshot.trackers else ""
    found = {"curl": f"curl -sN {url}/v1/events"}
    if event:
        if event.call_id:
            found["cli"] = f"meshnet logs tracker | grep {visible(event.call_id)}"
        found["json"] = msgspec.json.encode(event).decode()
    return found


EVENTS = TableSpec(
    name="events",
    title="Events",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    sorts=(Sort("time", True), Sort("kind")),
    follows=True,
    pane_share=6,
)
