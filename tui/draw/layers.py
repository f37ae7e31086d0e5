"""The coverage map: a row a node, a cell a layer (or a group of layers where room is scarce), hosts per layer below."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from meshnet.wire.messages import CoverageModel, NodeMessage
from tui.draw import numbers
from tui.draw.nodes import state_of
from tui.draw.routing import loss_line
from tui.draw.scale import groups, scale
from tui.draw.spans import Line, Span, Tone, cut, line, ruler, span, visible
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown, node

COLUMNS = (
    Column("name", "NODE", 12),
    Column("map", "LAYERS", 16, grow=True),
    Column("layers", "HELD", 7, right=True, drop=1),
    Column("memory", "WEIGHTS", 8, right=True, drop=3),
    Column("state", "STATE", 10, drop=2),
)
CELL: dict[str, Span] = {"ready": ("█", "good"), "loading": ("o", "accent"), "draining": ("v", "warn")}
SUSPECT: Span = ("~", "warn")
"""The sign that stands beside the word everywhere, ASCII or not; whatever the node says of itself."""
HOSTS_ROW = "hosts:"
"""Prefix of the key of a model's row that counts hosts."""
MAX_DIGIT = 9
"""A cell is one character: more hosts than nine are ``+``."""


def columns(shown: Shown) -> tuple[Column, ...]:
    depths = {model.n_layers for model in shown.snapshot.coverage}
    if len(depths) != 1:
        return COLUMNS
    return tuple(replace(column, count=max(depths)) if column.grow else column for column in COLUMNS)


def rows(shown: Shown, width: int) -> list[Row]:
    found: list[Row] = []
    for place, model in enumerate(_models(shown)):
        nodes = sorted(
            (row for row in shown.snapshot.nodes if row.model_key == model.model_key),
            key=lambda row: (row.shard_start, row.shard_end, row.node_id),
        )
        found.append(_hosts_row(model, width, place))
        found += [_node_row(row, model, width, place, i) for i, row in enumerate(nodes)]
    return found


def _models(shown: Shown) -> list[CoverageModel]:
    return sorted(shown.snapshot.coverage, key=lambda model: model.model_key)


def _cells(parts: list[Span]) -> Line:
    """Neighbours of one tone joined: fewer escape codes."""
    joined: list[Span] = []
    for text, tone in parts:
        if joined and joined[-1][1] == tone:
            joined[-1] = (joined[-1][0] + text, tone)
        else:
            joined.append((text, tone))
    return tuple(joined)


def node_map(row: NodeMessage, n_layers: int, width: int) -> Line:
    """Where this node's shard lies: full where it holds the whole group, half where a part."""
    char, tone = CELL[row.state]
    if row.suspect or row.ejected_for_s > 0:
        char, tone = SUSPECT
    cells: list[Span] = []
    for group in groups(n_layers, width):
        held = sum(row.shard_start <= layer <= row.shard_end for layer in group)
        cells.append((char, tone) if held == len(group) else ("▄", tone) if held else ("·", "dim"))
    return _cells(cells)


def hosts_map(model: CoverageModel, width: int) -> Line:
    """Hosts per cell: the fewest of the group's layers, so that a hole is never hidden."""
    cells: list[Span] = []
    for group in groups(model.n_layers, width):
        least = min((model.depths[layer] for layer in group if layer < len(model.depths)), default=0)
        tone: Tone = "bad" if least == 0 else "warn" if least == 1 else "good"
        cells.append((str(least) if least <= MAX_DIGIT else "+", tone))
    return _cells(cells)


def _hosts_row(model: CoverageModel, width: int, place: int) -> Row:
    holes = sum(depth == 0 for depth in model.depths)
    state: Span = ("! " + numbers.count(holes, "hole"), "bad") if holes else ("+ whole", "good")
    cells: dict[str, Line] = {
        "name": line(span(model.model_key, "title")),
        "map": hosts_map(model, width),
        "layers": line((f"0-{model.n_layers - 1}", "")),
        "memory": line((f"min {min(model.depths, default=0)}", "dim")),
        "state": line(state),
    }
    return Row(HOSTS_ROW + model.model_key, cells, {"place": float(place * 10_000)}, words=state[0])


def _node_row(row: NodeMessage, model: CoverageModel, width: int, place: int, i: int) -> Row:
    cells: dict[str, Line] = {
        "name": line(" ", span(row.name)),
        "map": node_map(row, model.n_layers, width),
        "layers": line(f"{row.shard_start}-{row.shard_end}"),
        "memory": line((numbers.size(row.weights_bytes), "dim")),
        "state": line(state_of(row)),
    }
    words = f"{visible(row.node_id)} {visible(row.model_key)}"
    return Row(row.node_id, cells, {"place": float(place * 10_000 + i + 1)}, words=words)


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    """Gaps and single-host layers of the model under the cursor, and what the node's loss would do."""
    row = node(shown.snapshot, key) if key else None
    wanted = row.model_key if row else (key or "").removeprefix(HOSTS_ROW)
    model = next((m for m in shown.snapshot.coverage if m.model_key == wanted), None)
    if model is None:
        return [ruler("layers", width), line(("nothing selected", "dim"))]
    said = [ruler(f"layers of {visible(model.model_key)}", width), *coverage_words(model)]
    loading = [n for n in shown.snapshot.nodes if n.model_key == model.model_key and n.state == "loading"]
    for joining in loading[:3]:
        done = joining.loading_done_bytes / joining.loading_total_bytes if joining.loading_total_bytes else 0.0
        said.append(
            line(" loading ", span(joining.name, "accent"), f" {joining.shard_start}-{joining.shard_end}: {done:.0%}")
        )
    routing = (
        next((m for m in shown.snapshot.routing.models if m.model_key == wanted), None)
        if shown.snapshot.routing
        else None
    )
    if row is not None and routing is not None:
        said.append(loss_line(shown, routing, row.node_id))
    elif row is not None and model.loss.get(row.node_id):
        said.append(
            line((f" if {visible(row.name)} leaves: layers {visible(model.loss[row.node_id])} uncovered", "bad"))
        )
    said.append(
        line(
            (" █ ready  ", "good"),
            ("o loading  ", "accent"),
            ("~ suspect  ", "warn"),
            ("v draining  · not held", "dim"),
        )
    )
    return [cut(parts, width) for parts in said]


def coverage_words(model: CoverageModel) -> list[Line]:
    gaps = visible(", ".join(model.gaps))
    single = visible(", ".join(model.single))
    held = sum(depth > 0 for depth in model.depths)
    return [
        line(f" {held} of {model.n_layers} layers held, deficit ", (numbers.percent(model.coverage_deficit), "strong")),
        line(" held by no node: ", (gaps or "none", "bad" if gaps else "good")),
        line(" on one node only: ", (single or "none", "warn" if single else "good")),
    ]


def details(shown: Shown, key: str, width: int) -> list[Line]:
    said = pane(shown, key, width)
    row = node(shown.snapshot, key)
    wanted = row.model_key if row else key.removeprefix(HOSTS_ROW)
    for model in shown.snapshot.coverage:
        if model.model_key == wanted:
            said += [(), ruler("layer by layer", width)]
            names = {n.node_id: visible(n.name) for n in shown.snapshot.nodes}
            said += [
                cut(
                    line(
                        f" {layer.layer:>4}  {len(layer.nodes):>3}  ",
                        (", ".join(names.get(n, n) for n in layer.nodes) or "nobody", "" if layer.nodes else "bad"),
                    ),
                    width,
                )
                for layer in model.layers
            ]
    return said


def small_map(shown: Shown, width: int, height: int) -> list[Line]:
    """The map for the overview's corner: the first model, as many nodes as fit."""
    models = _models(shown)
    if not models or height < 3:
        return []
    model = models[0]
    room = max(8, width - 46)
    low, holes = min(model.depths, default=0), sum(depth == 0 for depth in model.depths)
    said = [ruler(f"layers of {visible(model.model_key)}", width, f"hosts/layer min {low}  holes {holes}")]
    said.append(line(f" {'':<13}", *scale(model.n_layers, room)))
    nodes = sorted(
        (n for n in shown.snapshot.nodes if n.model_key == model.model_key),
        key=lambda n: (n.shard_start, -n.shard_end, n.name),
    )
    shown_nodes = nodes[: max(0, height - 3)]
    for row in shown_nodes:
        name = cut((span(row.name),), 12)
        used = f"{numbers.of(row.weights_bytes, row.memory_budget_bytes):>9}"
        said.append(
            line(
                " ",
                *name,
                " " * (13 - sum(len(t) for t, _ in name)),
                *node_map(row, model.n_layers, room),
                (used, "dim"),
                "  ",
                state_of(row),
            )
        )
    more = len(nodes) - len(shown_nodes)
    said.append(
        line((f" {'hosts':<13}", "dim"), *hosts_map(model, room), (f"  {more} more nodes" if more else "", "dim"))
    )
    return [cut(parts, width) for parts in said[:height]]


def head(shown: Shown, width: int) -> list[Line]:
    return []


def summary(shown: Shown) -> Line:
    holes = sum(depth == 0 for model in shown.snapshot.coverage for depth in model.depths)
    return line(
        f"{numbers.count(len(shown.snapshot.coverage), 'model')}, ",
        (numbers.count(holes, "hole"), "bad" if holes else "good"),
    )


def empty(shown: Shown) -> Line:
    served = not any(name.startswith("coverage") for name in shown.snapshot.unserved)
    return line(("no node holds any layer yet" if served else "coverage is not served by this tracker", "dim"))


def copies(shown: Shown, key: str) -> dict[str, str]:
    row = node(shown.snapshot, key)
    wanted = row.model_key if row else key.removeprefix(HOSTS_ROW)
    model = next((m for m in shown.snapshot.coverage if m.model_key == wanted), None)
    if model is None:
        return {}
    return {
        "cli": f"meshnet coverage {wanted}",
        "curl": f"curl -s '{shown.snapshot.trackers[0].url}/v1/coverage?model={wanted}'",
        "json": msgspec.json.encode(model).decode(),
    }


LAYERS = TableSpec(
    name="layers",
    title="Layers",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    sorts=(Sort("place"),),
    pane_share=7,
)
