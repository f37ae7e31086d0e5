"""The call wall: every request as the tracker saw it, newest first, and one call from its decision to its end."""

from __future__ import annotations

from collections import Counter

import msgspec

from meshnet.wire.routing import AttemptMessage, CallMessage
from tui.draw import numbers, sparks
from tui.draw.spans import Line, Span, Tone, cut, fit, line, ruler, span, visible, width_of
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown, call, label_of, node_name

LETTER = {"exploit": "E", "scout": "S", "pinned": "P", "greedy-fallback": "G"}
MODE_TONE: dict[str, Tone] = {"scout": "accent", "pinned": "strong", "greedy-fallback": "warn"}

COLUMNS = (
    Column("time", "TIME", 8, drop=6),
    Column("id", "CALL", 6, drop=3),
    Column("model", "MODEL", 10, drop=7),
    Column("mode", "MODE", 7),
    Column("route", "ROUTE", 20, grow=True),
    Column("tokens", "IN>OUT", 9, right=True),
    Column("ttft", "TTFT", 6, right=True, drop=4),
    Column("tps", "TOK/S", 6, right=True),
    Column("end", "END", 9),
    Column("reroutes", "RE", 3, right=True, drop=5),
    Column("prompt", "PROMPT", 24, drop=8),
)


def columns(_shown: Shown) -> tuple[Column, ...]:
    return COLUMNS


def rows(shown: Shown, _width: int) -> list[Row]:
    return [_row(shown, row) for row in shown.snapshot.calls]


def _row(shown: Shown, row: CallMessage) -> Row:
    running = row.outcome == "running"
    out = ".." if running and not row.completion_tokens else str(row.completion_tokens)
    cells: dict[str, Line] = {
        "time": line((numbers.clock(row.accepted_at), "dim")),
        "id": line((visible(row.call_id)[-6:], "dim")),
        "model": line(span(row.model_key)),
        "mode": line(_mode(row)),
        "route": line((label_of(shown, row.signature) if row.signature else "no route", "")),
        "tokens": line(f"{row.prompt_tokens}>{out}"),
        "ttft": line(numbers.duration(row.ttft_s)),
        "tps": line(numbers.tps(row.tps)),
        "end": line(ending(row)),
        "reroutes": line((str(row.reroutes) if row.reroutes else "", "warn")),
        "prompt": line(_prompt(shown, row)),
    }
    sort = {
        "time": float(row.seq),
        "tps": row.tps,
        "ttft": row.ttft_s,
        "tokens": float(row.completion_tokens),
        "end": {"failed": 0.0, "running": 1.0, "cancelled": 2.0, "ok": 3.0}[row.outcome],
        "mode": row.mode or "",
    }
    words = f"{visible(row.call_id)} {visible(row.model_key)} {row.mode or ''} {visible(row.error_message or '')}"
    return Row(row.call_id, cells, sort, words=words)


def _mode(row: CallMessage) -> Span:
    mode = row.mode or "-"
    return ("greedy" if mode == "greedy-fallback" else mode), MODE_TONE.get(mode, "")


def ending(row: CallMessage) -> Span:
    """A sign and a word: how the call ended."""
    if row.outcome == "running":
        return "> running", "accent"
    if row.outcome == "failed":
        return "x failed", "bad"
    if row.outcome == "cancelled":
        return "- cancel", "dim"
    return f"+ {visible(row.finish_reason or 'ok')}", "good"


def _prompt(shown: Shown, row: CallMessage) -> Span:
    if row.error_message:
        return span(row.error_message, "bad")
    if row.prompt is None:
        return "not kept", "dim"
    return span(row.prompt) if shown.prompts else ("hidden, P shows", "dim")


def strip(shown: Shown, width: int) -> Line:
    """One letter a call, newest right: E exploit, S scout, P pinned, G greedy, x failed, - cancelled, . running."""
    return tuple(_letter(row) for row in reversed(shown.snapshot.calls[:width]))


def _letter(row: CallMessage) -> Span:
    if row.outcome == "failed":
        return "x", "bad"
    if row.outcome == "cancelled":
        return "-", "dim"
    if row.outcome == "running":
        return ".", "accent"
    return LETTER.get(row.mode or "", "?"), MODE_TONE.get(row.mode or "", "good")


def count_line(shown: Shown) -> Line:
    """How the calls shown were routed, and what scouting cost them."""
    rows_shown = shown.snapshot.calls
    if not rows_shown:
        return line(("no calls yet", "dim"))
    modes = Counter(row.mode or "no route" for row in rows_shown)
    failed = sum(row.outcome == "failed" for row in rows_shown)
    parts: list[Span] = [(f"last {len(rows_shown)}: ", "dim")]
    parts.extend((f"{name} {count}  ", MODE_TONE.get(name, "")) for name, count in modes.most_common())
    parts.append((f"failed {failed}", "bad" if failed else "dim"))
    cost = _scouting_cost(shown)
    if cost is not None:
        parts.append((f"  scouting: -{numbers.tps(cost)} tok/s", "dim"))
    return tuple(parts)


def _scouting_cost(shown: Shown) -> float | None:
    exploited = [row.tps for row in shown.snapshot.calls if row.mode == "exploit" and row.tps]
    routed = [row.tps for row in shown.snapshot.calls if row.mode in ("exploit", "scout") and row.tps]
    if not exploited or len(routed) == len(exploited):
        return None
    cost = sum(exploited) / len(exploited) - sum(routed) / len(routed)
    return cost if cost >= 0.05 else None


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    row = call(shown.snapshot, key) if key else None
    if row is None:
        return [ruler("call", width), line(("no call selected", "dim"))]
    said = [ruler(f"call {visible(row.call_id)}", width)]
    for attempt in row.attempts[-2:]:
        said += _attempt(shown, attempt, width, short=True)
    if row.error_message:
        said.append(line(("  x ", "bad"), span(row.error_message, "bad")))
    return [cut(parts, width) for parts in said]


def _attempt(shown: Shown, attempt: AttemptMessage, width: int, short: bool = False) -> list[Line]:
    decision = attempt.decision
    chance = f"  p {decision.probability:.2f}" if decision.probability is not None else ""
    policy = f"  policy {visible(decision.policy)}" if decision.policy else ""
    said = [
        line(
            (f" attempt {attempt.attempt}: ", "dim"),
            (decision.mode, "strong"),
            " ",
            span(label_of(shown, decision.signature)),
            (chance, "dim"),
        ),
        line((" why ", "dim"), span(decision.why), (policy, "dim")),
    ]
    said += hop_lines(shown, attempt, width)
    if attempt.code:
        culprit = f", culprit {node_name(shown.snapshot, attempt.culprit)}" if attempt.culprit else ""
        said.append(
            line(
                (f" ended after {numbers.duration(attempt.ended_s)}: ", "dim"),
                span(attempt.code, "bad"),
                f"{culprit}  ",
                span(attempt.message),
            )
        )
    if not short and decision.scores:
        said.append(line((" scores", "title")))
        for signature, score in sorted(decision.scores.items(), key=lambda item: -item[1])[:12]:
            chance = numbers.percent(decision.probabilities.get(signature))
            said.append(line(f"  {score:>8.2f} {chance:>5}  ", span(label_of(shown, signature))))
    return said


def hop_lines(shown: Shown, attempt: AttemptMessage, width: int) -> list[Line]:
    """The waterfall: each hop's part of one token's time."""
    total = sum((hop.computing_us or 0) + (hop.queued_us or 0) for hop in attempt.hops)
    room = max(4, min(24, width - 50))
    last = "share of time" if width >= 64 else "share"
    said = [line((f"  {'hop':<14}{'layers':>8}{'compute':>11}{'queued':>10}  {last}", "title"))]
    for hop in attempt.hops:
        name = fit(((visible(hop.name) or node_name(shown.snapshot, hop.node_id), ""),), 14)
        spent = (hop.computing_us or 0) + (hop.queued_us or 0)
        said.append(
            line(
                "  ",
                *name,
                f"{f'{hop.start_layer}-{hop.end_layer}':>8}",
                f"{numbers.millis(hop.computing_us):>8} ms{numbers.millis(hop.queued_us):>7} ms  ",
                (sparks.bar(spent / total if total else 0, room), "accent"),
                (" relayed" if hop.relayed else "", "warn"),
            )
        )
    return said


def details(shown: Shown, key: str, width: int) -> list[Line]:
    row = call(shown.snapshot, key)
    if row is None:
        return [line(("this call is no longer among those shown", "dim"))]
    said = [
        ruler(f"call {visible(row.call_id)}", width),
        line(
            " ",
            ending(row),
            f"   {visible(row.model_key)}   accepted {numbers.clock(row.accepted_at)}",
            "   streamed" if row.stream else "   one piece",
        ),
        line(
            f" {row.prompt_tokens} tokens in, {row.completion_tokens} out, ",
            f"first after {numbers.duration(row.ttft_s)}, ",
            (f"{numbers.tps(row.tps)} tok/s", "strong"),
            f", {numbers.duration(row.duration_s)} in all, ",
            numbers.count(row.reroutes, "re-route"),
        ),
    ]
    if row.error_message:
        said.append(line(" ", span(f"{row.error_code}: {row.error_message}", "bad")))
    said.append(line((" prompt ", "dim"), _prompt(shown, row)))
    for attempt in row.attempts:
        said += [(), ruler(f"attempt {attempt.attempt}", width), *_attempt(shown, attempt, width)]
    events = [event for event in shown.events if event.call_id == row.call_id]
    said += [(), ruler("events", width)]
    said += [
        line(f" {numbers.clock(event.at)}  ", span(event.kind, "accent"), "  ", span(event.text))
        for event in reversed(events)
    ]
    return said if events else [*said, line((" none kept", "dim"))]


def head(shown: Shown, width: int) -> list[Line]:
    counts = count_line(shown)
    return [cut(counts if width_of(counts) <= width else counts[:-1], width)]


def summary(shown: Shown) -> Line:
    running = sum(row.outcome == "running" for row in shown.snapshot.calls)
    return line(
        f"{numbers.count(len(shown.snapshot.calls), 'call')}, {running} running",
        ("" if shown.prompts else "  prompts hidden", "dim"),
    )


def empty(shown: Shown) -> Line:
    served = not any(name.startswith("calls") for name in shown.snapshot.unserved)
    return line(
        ("no calls yet: ask something with 6" if served else "the call wall is not served by this tracker", "dim")
    )


def copies(shown: Shown, key: str) -> dict[str, str]:
    row = call(shown.snapshot, key)
    if row is None:
        return {}
    hops = row.attempts[-1].hops if row.attempts else ()
    pin = f" --route {','.join(hop.node_id for hop in hops)}" if hops else ""
    kept = row if shown.prompts else msgspec.structs.replace(row, prompt=None)
    return {
        "cli": f"meshnet chat --model {row.model_key}{pin}",
        "curl": f"curl -s {shown.snapshot.trackers[0].url}/v1/calls/{row.call_id}",
        "json": msgspec.json.encode(kept).decode(),
    }


CALLS = TableSpec(
    name="calls",
    title="Call wall",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    follows=True,
    pane_share=7,
    sorts=(Sort("time", True), Sort("end"), Sort("tps", True), Sort("ttft", True), Sort("tokens", True), Sort("mode")),
)
