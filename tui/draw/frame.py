"""The frame round every view: header, tabs, the problem line and the keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from meshnet.wire.status import Snapshot
from tui.draw import numbers
from tui.draw.spans import Line, Span, cut, line, span, spread, visible, width_of
from tui.model import Shown
from tui.poller import Link
from tui.problems import Problem

VIEWS = (
    ("routing", "Routing"),
    ("calls", "Calls"),
    ("nodes", "Nodes"),
    ("layers", "Layers"),
    ("models", "Models"),
    ("chat", "Chat"),
    ("events", "Events"),
)
"""Name and title, in the order of the number keys."""
GAP: Span = ("  ", "dim")
"""Between two pairs of key and word."""


def header(
    shown: Shown | None, link: Link, url: str, now: float, width: int, read_only: bool, ago_s: float | None
) -> Line:
    """One line: which tracker, how it answers, the mesh in numbers; right: live, FROZEN or how far back we look."""
    left: list[Span] = [
        ("meshnet ", "title"),
        (visible(urlsplit(url).netloc or url), ""),
        (" ", ""),
        _answer(link, now),
    ]
    if shown is not None:
        left += _mesh(shown.snapshot)
    if read_only:
        left.append(("  ro", "dim"))
    return spread(tuple(left), _time_state(link, now, ago_s), width)


def _answer(link: Link, now: float) -> Span:
    if link.failures:
        return f"RETRY {link.failures} in {max(0, round(link.next_try_at - now))}s", "bad"
    if link.latency_s is None:
        return "connecting", "dim"
    return "ok", "good"


def _mesh(snapshot: Snapshot) -> list[Span]:
    ready = sum(node.state == "ready" and node.ejected_for_s <= 0 and not node.suspect for node in snapshot.nodes)
    total = len(snapshot.nodes)
    found: list[Span] = [("  nodes ", "dim"), (f"{ready}/{total}", "" if ready == total else "warn")]
    if snapshot.routing:
        found += line(("  routes ", "dim"), (str(sum(len(model.candidates) for model in snapshot.routing.models)), ""))
    for stats in snapshot.stats.models[:2] if snapshot.stats else ():
        found += line(
            (f"  {visible(stats.model_key)} ", "dim"), (f"{numbers.rpm(stats.combined_rpm_last_hour)} rpm", "")
        )
    return found


def _time_state(link: Link, now: float, ago_s: float | None) -> Line:
    if ago_s is not None:
        return line((f" {numbers.coarse(ago_s)} AGO ([ ] step, t live)", "warn"))
    if link.is_frozen(now) and link.last_good_at is not None:
        return line((f" FROZEN {int(link.silent_s(now))}s", "bad"))
    if link.last_good_at is None:
        return line((" no answer yet" if link.failures else " asking", "warn"))
    return line((" live", "good"))


def tabs(active: str, width: int, problems: Sequence[Problem]) -> Line:
    """The seven views; where there is no room for titles, their beginnings."""
    for room in (99, 4, 0):
        parts: list[Span] = []
        for i, (name, title) in enumerate(VIEWS):
            count = sum(problem.view == name and problem.weight >= 50 for problem in problems)
            mark = "!" if count else ""
            text = f" {i + 1} {title[:room]}{mark} " if room else f" {i + 1}{mark}"
            parts.append((text, "tab" if name == active else "bad" if mark else "dim"))
        if width_of(tuple(parts)) <= width:
            return tuple(parts)
    return cut(tuple(parts), width)


def tab_at(active: str, width: int, problems: Sequence[Problem], x: int) -> str | None:
    """Which view's tab is at column ``x``: for the mouse."""
    at = 0
    for (name, _), (text, _tone) in zip(VIEWS, tabs(active, width, problems), strict=False):
        at += len(text)
        if x < at:
            return name
    return None


def problem_line(problems: Sequence[Problem], place: int, message: str, width: int) -> Line:
    """What we have to say, or the problem at ``place``."""
    if message:
        return cut(line(" ", span(message, "strong")), width)
    if not problems:
        return ()
    problem = problems[place % len(problems)]
    tail = line((f"  n next ({place % len(problems) + 1} of {len(problems)})", "dim"))
    return spread(line((" ! ", "bad" if problem.weight >= 50 else "warn"), span(problem.text)), tail, width)


def key_line(keys: Sequence[tuple[str, str]], width: int) -> Line:
    """``key word`` pairs, as many as fit; the last two (how to leave, help) before all others."""
    *others, leave, last = [_pair(key, word) for key, word in keys]
    always = (*leave, GAP, *last)
    parts: list[Span] = []
    for pair in others:
        if width_of((*parts, *pair, GAP, *always)) > width:
            break
        parts += (*pair, GAP)
    return cut((*parts, *always), width)


def _pair(key: str, word: str) -> tuple[Span, Span]:
    return (key, "key"), (f" {word}", "dim")
