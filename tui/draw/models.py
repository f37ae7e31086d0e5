"""Models: what is asked of each, how much of it is held, and whether the trackers agree."""

from __future__ import annotations

import msgspec

from meshnet.wire.demand import ModelStats
from meshnet.wire.messages import ModelMessage
from tui.draw import numbers, sparks
from tui.draw.spans import Line, Span, cut, line, ruler, span, visible, wrap
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown

COLUMNS = (
    Column("model", "MODEL", 16, grow=True),
    Column("ready", "STATE", 9),
    Column("held", "HELD", 5, right=True),
    Column("hour", "RPM/H", 6, right=True),
    Column("day", "RPM/D", 6, right=True, drop=3),
    Column("month", "RPM/M", 6, right=True, drop=5),
    Column("spark", "LAST HOUR", 20, drop=4),
    Column("nodes", "NODES", 5, right=True),
    Column("epoch", "EPOCH", 5, right=True, drop=6),
    Column("layers", "LAYERS", 6, right=True, drop=7),
    Column("context", "CONTEXT", 7, right=True, drop=8),
    Column("size", "WEIGHTS", 7, right=True, drop=9),
)


def columns(_shown: Shown) -> tuple[Column, ...]:
    return COLUMNS


def rows(shown: Shown, _width: int) -> list[Row]:
    known = {model.id: model for model in shown.snapshot.models}
    asked = [name for name in (m.model_key for m in _stats(shown)) if name not in known]
    found = [_row(shown, model.id, model) for model in shown.snapshot.models]
    return found + [_row(shown, name, None) for name in asked]


def _stats(shown: Shown) -> tuple[ModelStats, ...]:
    return shown.snapshot.stats.models if shown.snapshot.stats else ()


def stats_of(shown: Shown, model_key: str) -> ModelStats | None:
    return next((stats for stats in _stats(shown) if stats.model_key == model_key), None)


def _row(shown: Shown, name: str, model: ModelMessage | None) -> Row:
    stats = stats_of(shown, name)
    state: Span = (
        ("+ ready", "good")
        if model and model.ready
        else ("! gaps", "bad")
        if model and model.nodes
        else ("o nobody", "dim")
    )
    held = 1 - model.coverage_deficit if model else 0.0
    epoch = _epoch(shown, name)
    rpm = (stats.combined_rpm_last_hour, stats.combined_rpm_last_day, stats.combined_rpm_last_month) if stats else None
    cells: dict[str, Line] = {
        "model": line(span(name, "strong")),
        "ready": line(state),
        "held": line((numbers.percent(held), "" if held >= 1 else "bad")),
        "hour": line(numbers.rpm(rpm[0]) if rpm else numbers.NONE),
        "day": line(numbers.rpm(rpm[1]) if rpm else numbers.NONE),
        "month": line((numbers.rpm(rpm[2]) if rpm else numbers.NONE, "dim")),
        "spark": line((_minutes(stats, 20), "accent")),
        "nodes": line(str(model.nodes if model else 0)),
        "epoch": line(str(epoch) if epoch is not None else numbers.NONE),
        "layers": line(str(model.n_layers) if model else numbers.NONE),
        "context": line(str(model.context_length) if model else numbers.NONE),
        "size": line((_weights(shown, name), "dim")),
    }
    sort = {
        "hour": rpm[0] if rpm else None,
        "model": visible(name),
        "held": held,
        "nodes": float(model.nodes if model else 0),
    }
    return Row(name, cells, sort, words=state[0])


def _epoch(shown: Shown, name: str) -> int | None:
    models = shown.snapshot.routing.models if shown.snapshot.routing else ()
    return next((m.topology_epoch for m in models if m.model_key == name), None)


def _minutes(stats: ModelStats | None, width: int) -> str:
    if stats is None or not any(stats.minutes):
        return ""
    return sparks.sparkline(sparks.squeeze(stats.minutes, width), width)


def _weights(shown: Shown, name: str) -> str:
    """Bytes of the whole model, from what the nodes hold a layer."""
    held = [n for n in shown.snapshot.nodes if n.model_key == name and n.weights_bytes]
    if not held:
        return numbers.NONE
    per_layer = sum(n.weights_bytes / (n.shard_end - n.shard_start + 1) for n in held) / len(held)
    return "~" + numbers.size(per_layer * held[0].n_layers)


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    if key is None:
        return [ruler("model", width), line(("no model selected", "dim"))]
    said = [ruler(f"demand of {visible(key)}", width), *_demand(shown, key, width)]
    said += [*_coverage(shown, key), *_joining(shown, key), *_trackers(shown)]
    return [cut(parts, width) for parts in said]


def _demand(shown: Shown, key: str, width: int) -> list[Line]:
    stats = stats_of(shown, key)
    if stats is None:
        served = shown.snapshot.stats is not None
        return [line((" nobody asked for it yet" if served else " demand is not served by this tracker", "dim"))]
    rows_of = (
        ("hour ", stats.rpm_last_hour, stats.combined_rpm_last_hour),
        ("day  ", stats.rpm_last_day, stats.combined_rpm_last_day),
        ("month", stats.rpm_last_month, stats.combined_rpm_last_month),
    )
    parts: list[Span] = [(" requests a minute   ", "dim")]
    for name, own, combined in rows_of:
        here = (f" (here {numbers.rpm(own)})   ", "dim")
        parts += line((f"{name.strip()} ", "dim"), (numbers.rpm(combined), "strong"), here)
    said = wrap(tuple(parts), width)
    if any(stats.minutes):
        room = max(10, min(60, width - 34))
        spark = sparks.sparkline(sparks.squeeze(stats.minutes, room), min(room, len(stats.minutes)))
        said.append(line((" last hour, by minute ", "dim"), (spark, "accent"), f" max {max(stats.minutes)}"))
    return said


def _coverage(shown: Shown, key: str) -> list[Line]:
    coverage = next((c for c in shown.snapshot.coverage if c.model_key == key), None)
    if coverage is None:
        return [line((" no node holds any of its layers", "warn"))]
    gaps = visible(", ".join(coverage.gaps))
    held: Span = (f"layers {gaps} are held by nobody", "bad") if gaps else ("every layer is held", "good")
    return [line(" ", held, (f", least by {min(coverage.depths, default=0)}" if not gaps else "", "dim"))]


def _joining(shown: Shown, key: str) -> list[Line]:
    """Assignments in progress: nodes that load layers of this model now."""
    said: list[Line] = []
    for node in shown.snapshot.nodes:
        if node.model_key == key and node.state == "loading":
            share = node.loading_done_bytes / node.loading_total_bytes if node.loading_total_bytes else 0.0
            said.append(
                line(
                    " joining ",
                    span(node.name, "accent"),
                    f" takes layers {node.shard_start}-{node.shard_end}  ",
                    (sparks.bar(share, 12), "accent"),
                    f" {share:.0%}",
                )
            )
    return said


def _trackers(shown: Shown) -> list[Line]:
    stats = shown.snapshot.stats
    if stats is None:
        return []
    unsaved = f"   unsaved {numbers.coarse(stats.unsaved_s)}" if stats.unsaved_s > 60 else ""
    said = [
        line((" tracker ", "dim"), span(stats.tracker_id), f"   database {visible(stats.database)}", (unsaved, "warn"))
    ]
    for peer in stats.peers:
        state: Span = ("+ heard", "good") if peer.up else ("! silent", "bad")
        said.append(
            line(
                (" peer    ", "dim"),
                span(peer.url),
                "  ",
                state,
                f" {numbers.age(peer.age_s)} ago  ",
                span(peer.error, "bad"),
            )
        )
    return said


def details(shown: Shown, key: str, width: int) -> list[Line]:
    said = pane(shown, key, width)
    model = next((m for m in shown.snapshot.models if m.id == key), None)
    if model:
        said += [(), ruler("weights", width), line(f" {model.n_layers} layers, context {model.context_length} tokens")]
        said += [line(" revision ", span(revision)) for revision in model.revisions]
    nodes = [node for node in shown.snapshot.nodes if node.model_key == key]
    said += [(), ruler("nodes", width)]
    said += [
        line(
            " ", span(f"{node.name:<16}"), f" {node.shard_start}-{node.shard_end}  {node.state}  ", (node.dtype, "dim")
        )
        for node in nodes
    ]
    return said


def head(shown: Shown, width: int) -> list[Line]:
    return []


def summary(shown: Shown) -> Line:
    ready = sum(model.ready for model in shown.snapshot.models)
    return line(f"{numbers.count(len(shown.snapshot.models), 'model')}, {ready} ready")


def empty(_shown: Shown) -> Line:
    return line(("no model is known; get one with: meshnet models pull", "dim"))


def copies(shown: Shown, key: str) -> dict[str, str]:
    model = next((m for m in shown.snapshot.models if m.id == key), None)
    return {
        "cli": f"meshnet coverage {key}",
        "curl": f"curl -s {shown.snapshot.trackers[0].url}/v1/models/{key}",
        "json": msgspec.json.encode(model).decode() if model else "{}",
    }


MODELS = TableSpec(
    name="models",
    title="Models",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    sorts=(Sort("hour", True), Sort("model"), Sort("held"), Sort("nodes", True)),
)
