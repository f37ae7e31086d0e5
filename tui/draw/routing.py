"""Routing (learned): the candidate table, and why a route has the share it has."""

from __future__ import annotations

import json

import msgspec

from meshnet.wire.routing import CandidateMessage, RoutingConfigMessage, RoutingModel
from meshnet.wire.status import Snapshot
from tui.draw import numbers, sparks
from tui.draw.spans import Line, Span, Tone, cut, fit, line, ruler, span, visible, wrap
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown, candidate, candidates, label_of, node_name

STATUS: dict[str, Span] = {
    "proven": ("+ proven", "good"),
    "unsampled": ("? unsampled", "accent"),
    "stale": ("~ stale", "warn"),
    "decayed": ("v decayed", "dim"),
}
NOT_NOW: Span = ("x not now", "dim")
"""Remembered, but no candidate in the present topology."""

COLUMNS = (
    Column("route", "ROUTE (hops)", 20, grow=True),
    Column("hops", "HOPS", 4, right=True, drop=8),
    Column("tps", "TOK/S", 6, right=True),
    Column("spread", "+/-", 5, right=True, drop=4),
    Column("samples", "N", 5, right=True, drop=3),
    Column("weight", "WEIGHT", 6, right=True, drop=7),
    Column("coef", "COEF", 5, right=True, drop=1),
    Column("share", "SHARE", 6, right=True),
    Column("want", "WANT", 5, right=True, drop=2),
    Column("age", "AGE", 5, right=True, drop=5),
    Column("status", "STATUS", 11),
)
MODEL_COLUMN = Column("model", "MODEL", 12, drop=6)


def columns(shown: Shown) -> tuple[Column, ...]:
    models = shown.snapshot.routing.models if shown.snapshot.routing else ()
    return (MODEL_COLUMN, *COLUMNS) if len(models) > 1 else COLUMNS


def rows(shown: Shown, _width: int) -> list[Row]:
    return [_row(shown, model, row) for model, row in candidates(shown.snapshot)]


def _row(shown: Shown, model: RoutingModel, row: CandidateMessage) -> Row:
    status = STATUS[row.status] if row.current else NOT_NOW
    quiet: Tone = "" if row.current else "dim"
    label = label_of(shown, row.signature)
    scout: Span = (" *" if row.next_scout else "", "accent")
    cells: dict[str, Line] = {
        "model": line(span(model.model_key)),
        "route": line((label, quiet), scout),
        "hops": line(str(len(row.hops))),
        "tps": line((numbers.tps(row.learned_tps), "strong" if row.coefficient and row.coefficient >= 1 else quiet)),
        "spread": line((numbers.tps(row.spread_tps), "dim")),
        "samples": line(str(row.samples)),
        "weight": line((f"{row.weight:.2f}", "dim")),
        "coef": line((numbers.ratio(row.coefficient), quiet)),
        "share": line(numbers.percent(row.actual_share)),
        "want": line(numbers.percent(row.expected_share)),
        "age": line((numbers.age(row.age_s), "dim")),
        "status": line(status),
    }
    sort = {
        "want": row.expected_share,
        "tps": row.learned_tps,
        "share": row.actual_share,
        "coef": row.coefficient,
        "samples": float(row.samples),
        "age": row.age_s,
        "status": status[0][2:],
        "route": label,
    }
    return Row(row.signature, cells, sort, words=f"{visible(row.signature)} {visible(model.model_key)}")


SORTS = (
    Sort("want", True),
    Sort("tps", True),
    Sort("share", True),
    Sort("samples", True),
    Sort("age"),
    Sort("status"),
    Sort("route"),
)


def head(shown: Shown, width: int) -> list[Line]:
    """The configuration in force and the topology epoch of each model."""
    routing = shown.snapshot.routing
    if routing is None:
        return [line(("learned routing is not served by this tracker", "warn"))]
    epochs = "  ".join(f"{visible(model.model_key)} epoch {model.topology_epoch}" for model in routing.models)
    config = line(*_config(routing.config))
    return wrap((*config, *line(("  " + epochs, "dim"))), width, 1)[:2]


def _config(config: RoutingConfigMessage) -> list[Span]:
    words = (
        ("policy ", span(config.policy)[0]),
        ("  explore ", numbers.percent(config.explore_share)),
        ("  alpha ", f"{config.weight_alpha:g}"),
        ("  half-life ", numbers.coarse(config.stats_half_life_s)),
        ("  min ", f"{config.min_sample_tokens} tok"),
    )
    return [part for word, value in words for part in line((word, "dim"), (value, "strong"))]


# ---- why


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    """Why the selected route has its share: the numbers behind it, its hops, and what a loss would cost."""
    found = next(((m, c) for m, c in candidates(shown.snapshot) if c.signature == key), None)
    if found is None:
        return [ruler("why", width), line(("no route selected", "dim"))]
    model, row = found
    said = [ruler(f"why {label_of(shown, row.signature)}", width)]
    for parts in (_learned(row), _coefficient(shown, model, row), _share(row), _freshness(row)):
        said += wrap(parts, width)
    said += [*_speed_over_time(shown, row, width), *_hops(shown, row, width)]
    for node_id in dict.fromkeys(hop.node_id for hop in row.hops):
        said += wrap(loss_line(shown, model, node_id), width)
    return [cut(parts, width) for parts in said]


def _learned(row: CandidateMessage) -> Line:
    if row.learned_tps is None:
        return line(
            " not measured yet; prior ", (numbers.tps(row.prior_tps), "strong"), " tok/s from the nodes' benchmarks"
        )
    spread = f" ±{numbers.tps(row.spread_tps)}" if row.spread_tps is not None else ""
    return line(
        " learned ",
        (numbers.tps(row.learned_tps), "strong"),
        f"{spread} tok/s from {numbers.count(row.samples, 'call')}",
        (f"   weight {row.weight:.2f}   prior {numbers.tps(row.prior_tps)}", "dim"),
    )


def _coefficient(shown: Shown, model: RoutingModel, row: CandidateMessage) -> Line:
    best = max((c for c in model.candidates if c.status == "proven"), key=lambda c: c.learned_tps or 0, default=None)
    if row.coefficient is None or best is None:
        return line(" coefficient ", ("-", "strong"), ("   nothing to compare with yet", "dim"))
    return line(
        " coefficient ",
        (numbers.ratio(row.coefficient), "strong"),
        f" = {numbers.tps(row.learned_tps)} / {numbers.tps(best.learned_tps)}",
        (f"   best {label_of(shown, best.signature)}", "dim"),
    )


def _share(row: CandidateMessage) -> Line:
    had, want = numbers.percent(row.actual_share), numbers.percent(row.expected_share)
    expects = f"   policy expects {numbers.tps(row.predicted_tps)} tok/s   reputation {row.reputation:.2f}"
    return line(" share ", (want, "strong"), " expected, ", (had, "strong"), " in the last hour", (expects, "dim"))


def _freshness(row: CandidateMessage) -> Line:
    if not row.current:
        return line((" remembered, but no candidate in this topology", "warn"))
    parts: list[Span] = [(" ", "")]
    if row.status == "proven" and not row.stale_in_s:
        parts += line(("measured lately enough to be trusted", ""))
    elif row.stale_in_s:
        parts += line(("stale in ", ""), (numbers.coarse(row.stale_in_s), "strong"), (" if unused", ""))
    elif row.learned_tps is None:
        parts += line(("waits for its first scout", ""))
    else:
        parts += line(("what was measured has gone stale: a scout may come", "warn"))
    if row.next_scout:
        parts.append(("   the next scout goes here *", "accent"))
    return tuple(parts)


def _speed_over_time(shown: Shown, row: CandidateMessage, width: int) -> list[Line]:
    """Its learned speed over the snapshots kept, where it ever changed."""

    def learned(snapshot: Snapshot) -> float | None:
        found = candidate(snapshot, row.signature)
        return found.learned_tps if found else None

    values = sparks.by_time([(past.taken_at, learned(past)) for past in shown.past], max(4, min(30, width - 16)))
    if not values:
        return []
    bars = sparks.sparkline(values, len(values))
    return [line((" tok/s ", "dim"), (bars, "accent"), f" {numbers.tps(row.learned_tps)}")]


def _hops(shown: Shown, row: CandidateMessage, width: int) -> list[Line]:
    """A line a hop: its layers, its part of one token's time; queue and load where there is room."""
    total = sum(hop.computing_us or 0 for hop in row.hops)
    roomy = width >= 60
    more = f"{'queued':>10}{'load':>6}" if roomy else ""
    said = [
        line(
            (f" {'hop':<12}{'layers':>8}{'compute':>10}{more}", "title"),
            ("  of it" if not roomy else "  share of time", "title"),
        )
    ]
    for hop in row.hops:
        name = visible(hop.name) or node_name(shown.snapshot, hop.node_id)
        share = (hop.computing_us or 0) / total if total else 0.0
        slow: Tone = "warn" if len(row.hops) > 1 and share > 0.6 else "accent"
        rest = f"{numbers.millis(hop.queued_us):>7} ms{hop.load:>6}" if roomy else ""
        said.append(
            line(
                " ",
                *fit(((name, ""),), 12),
                f"{f'{hop.start_layer}-{hop.end_layer}':>8}{numbers.millis(hop.computing_us):>7} ms",
                (rest, "dim"),
                "  ",
                (sparks.bar(share, max(4, min(18, width - (54 if roomy else 33)))), slow),
                (" relayed" if hop.relayed else "", "dim"),
            )
        )
    return said


def loss_line(shown: Shown, model: RoutingModel, node_id: str) -> Line:
    """What this model loses with one node, read from the present table and coverage."""
    name = node_name(shown.snapshot, node_id)
    alive = [c for c in model.candidates if c.current]
    left = [c for c in alive if all(hop.node_id != node_id for hop in c.hops)]
    best = max((c.learned_tps or c.prior_tps for c in left), default=None)
    gap = _uncovered(shown.snapshot, model.model_key, node_id)
    end: Span = (f"; layers {gap} uncovered", "bad") if gap else ("", "")
    rest = f", best left {numbers.tps(best)} tok/s" if left else ", none left"
    return line(f" if {name} leaves: {len(alive) - len(left)} of {len(alive)} routes lost{rest}", end)


def _uncovered(snapshot: Snapshot, model_key: str, node_id: str) -> str:
    coverage = next((c for c in snapshot.coverage if c.model_key == model_key), None)
    return visible(coverage.loss.get(node_id, "")) if coverage else ""


def details(shown: Shown, key: str, width: int) -> list[Line]:
    row = candidate(shown.snapshot, key)
    said = pane(shown, key, width)
    if row is None:
        return said
    said += [(), ruler("signature", width), line(" ", span(row.signature))]
    prompt, decode = numbers.duration(row.ttft_s_per_prompt_token), numbers.duration(row.decode_s_per_token)
    timing = f" {prompt} a prompt token, {decode} a token"
    said += [(), ruler("timing", width), line(timing)]
    routing = shown.snapshot.routing
    for model in routing.models if routing else ():
        if any(c.signature == key for c in model.candidates) and model.left_out:
            said += [(), ruler("left out of the candidates", width)]
            said += [
                line(" ", span(node_name(shown.snapshot, who)), "  ", span(why, "dim")) for who, why in model.left_out
            ]
    said += [(), ruler("recent calls over this route", width)]
    calls = [call for call in shown.snapshot.calls if call.signature == key][:10]
    said += [
        line(
            f" {numbers.clock(call.accepted_at)}  {call.mode or '-':<16}{numbers.tps(call.tps):>7} tok/s  ",
            (call.outcome, "dim"),
        )
        for call in calls
    ] or [line((" none of those shown", "dim"))]
    return said


def summary(shown: Shown) -> Line:
    every = list(candidates(shown.snapshot))
    proven = sum(row.status == "proven" and row.current for _, row in every)
    out = sum(len(model.left_out) for model in shown.snapshot.routing.models) if shown.snapshot.routing else 0
    return line(f"{numbers.count(len(every), 'route')}, {proven} proven", (f", {out} left out" if out else "", "dim"))


def empty(shown: Shown) -> Line:
    if shown.snapshot.routing is None:
        return line(("learned routing is not served by this tracker", "dim"))
    return line(("no candidate route: some layers are held by no node (4 shows which)", "dim"))


def copies(shown: Shown, key: str) -> dict[str, str]:
    row = candidate(shown.snapshot, key)
    if row is None:
        return {}
    route = ",".join(hop.node_id for hop in row.hops)
    model = next(m.model_key for m, c in candidates(shown.snapshot) if c.signature == key)
    body = json.dumps({"model": model, "route": route.split(","), "messages": [{"role": "user", "content": "hi"}]})
    return {
        "cli": f"meshnet chat --model {model} --route {route}",
        "curl": f"curl -s {shown.snapshot.trackers[0].url}/v1/chat/completions -d '{body}'",
        "json": msgspec.json.encode(row).decode(),
    }


ROUTING = TableSpec(
    name="routing",
    title="Routing (learned)",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    sorts=SORTS,
    side_pane=True,
    pane_share=9,
)
