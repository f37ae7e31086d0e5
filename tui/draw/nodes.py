"""Nodes: hardware, shard, speed as promised and as seen, memory, health."""

from __future__ import annotations

import msgspec

from meshnet.wire.messages import NodeMessage
from meshnet.wire.status import Snapshot
from tui.draw import numbers, sparks
from tui.draw.routing import loss_line
from tui.draw.spans import Line, Span, Tone, line, ruler, span, visible, wrap
from tui.draw.spec import TableSpec
from tui.draw.table import Column, Row, Sort
from tui.model import Shown, node

COLUMNS = (
    Column("name", "NODE", 12, grow=True),
    Column("layers", "LAYERS", 7, right=True),
    Column("state", "STATE", 10),
    Column("bench", "BENCH", 6, right=True, drop=4),
    Column("seen", "1 MIN", 6, right=True),
    Column("spark", "TOK/S", 10, drop=9),
    Column("queue", "Q", 3, right=True, drop=3),
    Column("sessions", "SESS", 4, right=True),
    Column("kv", "KV", 8, right=True, drop=5),
    Column("ram", "RAM", 8, right=True, drop=6),
    Column("accel", "ACCELERATOR", 16, drop=8),
    Column("cpu", "CPU", 18, drop=10),
    Column("beat", "BEAT", 5, right=True, drop=2),
    Column("rep", "REP", 4, right=True, drop=7),
)


def columns(_shown: Shown) -> tuple[Column, ...]:
    return COLUMNS


def rows(shown: Shown, _width: int) -> list[Row]:
    return [_row(shown, row) for row in shown.snapshot.nodes]


def state_of(row: NodeMessage) -> Span:
    """A sign and a word, worst first."""
    if row.ejected_for_s > 0:
        return "! ejected", "bad"
    if row.suspect:
        return "~ suspect", "warn"
    if row.state == "loading":
        done = row.loading_done_bytes / row.loading_total_bytes if row.loading_total_bytes else 0.0
        return f"o load {done:.0%}", "accent"
    if row.state == "draining" and row.health != "quarantined":
        return "v draining", "warn"
    if row.health not in ("ok", ""):
        return f"! {visible(row.health)}", "warn"
    return "+ ready", "good"


def _row(shown: Shown, row: NodeMessage) -> Row:
    kv_used = row.kv_budget_bytes - row.kv_free_bytes
    hardware = row.hardware
    state = state_of(row)
    cells: dict[str, Line] = {
        "name": line(span(row.name, "strong")),
        "layers": line(f"{row.shard_start}-{row.shard_end}"),
        "state": line(state),
        "bench": line((numbers.tps(row.benchmark_tokens_per_sec), "dim")),
        "seen": line(
            (numbers.tps(row.observed_tokens_per_sec), "") if row.observed_tokens_per_sec else ("idle", "dim")
        ),
        "spark": line((_spark(shown, row.node_id, 10), "accent")),
        "queue": line(str(row.queue_depth)),
        "sessions": line(str(max(row.in_flight, row.tracker_in_flight))),
        "kv": line((numbers.of(kv_used, row.kv_budget_bytes), _fullness(kv_used, row.kv_budget_bytes))),
        "ram": line(numbers.of(hardware.ram_total_bytes - hardware.ram_available_bytes, hardware.ram_total_bytes)),
        "accel": line(span(_accelerators(row))),
        "cpu": line(span(f"{hardware.cores_physical}c {hardware.cpu_model}", "dim")),
        "beat": line((numbers.age(row.heartbeat_age_s), "warn" if row.suspect else "dim")),
        "rep": line((f"{row.reputation:.2f}", "warn" if row.reputation < 0.8 else "dim")),
    }
    sort = {
        "name": visible(row.name),
        "layers": row.shard_start + row.shard_end / 10_000,
        "state": state[0],
        "bench": row.benchmark_tokens_per_sec,
        "seen": row.observed_tokens_per_sec,
        "queue": float(row.queue_depth),
        "rep": row.reputation,
    }
    reach = "relayed" if is_relayed(row) else "direct"
    words = " ".join(map(visible, (row.node_id, row.model_key, hardware.cpu_model, hardware.os, state[0], reach)))
    return Row(row.node_id, cells, sort, words=words)


def _accelerators(row: NodeMessage) -> str:
    names = [accelerator.name.removeprefix("NVIDIA ") for accelerator in row.hardware.accelerators]
    return (names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")) if names else "none"


def _fullness(used: float, total: float) -> Tone:
    return "warn" if total and used / total > 0.9 else ""


def _spark(shown: Shown, node_id: str, width: int) -> str:
    def seen(snapshot: Snapshot) -> float | None:
        found = node(snapshot, node_id)
        return found.observed_tokens_per_sec if found else None

    values = sparks.by_time([(past.taken_at, seen(past)) for past in shown.past], width)
    row = node(shown.snapshot, node_id)
    top = max([row.benchmark_tokens_per_sec if row else 0.0, *(value or 0.0 for value in values)])
    return sparks.sparkline(values, width, top) if values else ""


def pane(shown: Shown, key: str | None, width: int) -> list[Line]:
    """One node in full: speed, load, memory, hardware, health, and what its loss would cost."""
    row = node(shown.snapshot, key) if key else None
    if row is None:
        return [ruler("node", width), line(("no node selected", "dim"))]
    said = [ruler(f"{visible(row.name)}  {visible(row.node_id)}", width)]
    for parts in (_place(row), _speed(row), _load(row), _memory(row), _hardware(row), _health(row)):
        said += wrap(parts, width, 10)
    if row.loading_total_bytes and row.state == "loading":
        share = row.loading_done_bytes / row.loading_total_bytes
        done = f" {share:.0%} of {numbers.size(row.loading_total_bytes)}"
        said.append(line((" loading  ", "dim"), (sparks.bar(share, 20), "accent"), done))
    for model in shown.snapshot.routing.models if shown.snapshot.routing else ():
        if model.model_key == row.model_key:
            said += wrap(loss_line(shown, model, row.node_id), width)
    return said


def _place(row: NodeMessage) -> Line:
    shard = f"   layers {row.shard_start}-{row.shard_end} of {row.n_layers}   {visible(row.model_key)} {row.dtype}"
    joined = f"   joined {numbers.age(row.joined_age_s)} ago, lease {row.epoch}"
    return line(" ", state_of(row), shard, ("   relayed" if is_relayed(row) else "", "warn"), (joined, "dim"))


def is_relayed(row: NodeMessage) -> bool:
    """Nobody can dial it: links to it run through a relay, at the relay's speed."""
    return row.url.startswith("relay://")


def _speed(row: NodeMessage) -> Line:
    """What a node reports as seen is the mean of its last minute, idle time included."""
    benchmark = f"benchmark {numbers.tps(row.benchmark_tokens_per_sec)} ±{numbers.tps(row.benchmark_spread)}"
    eight = f"   8 at once {numbers.tps(row.benchmark_batch8_tokens_per_sec or None)}"
    prefill = f"   prefill {numbers.tps(row.prefill_tokens_per_sec or None)}   1 min mean "
    return line((" tok/s    ", "dim"), benchmark, eight, prefill, (numbers.tps(row.observed_tokens_per_sec), "strong"))


def _load(row: NodeMessage) -> Line:
    used = numbers.of(row.kv_budget_bytes - row.kv_free_bytes, row.kv_budget_bytes)
    sent = f"   sent by the tracker {row.tracker_in_flight}   KV {used}"
    return line((" load     ", "dim"), f"queue {row.queue_depth}   sessions {row.in_flight}", sent)


def _memory(row: NodeMessage) -> Line:
    hardware = row.hardware
    own = f"weights {numbers.size(row.weights_bytes)}   process {numbers.size(row.rss_bytes)}"
    budget = f"   budget {numbers.size(row.memory_budget_bytes) if row.memory_budget_bytes else numbers.NONE}"
    free = f"   RAM free {numbers.size(hardware.ram_available_bytes)} of {numbers.size(hardware.ram_total_bytes)}"
    return line((" memory   ", "dim"), own, budget, free, f"   disk free {numbers.size(hardware.disk_free_bytes)}")


def _hardware(row: NodeMessage) -> Line:
    hardware = row.hardware
    cpu = f"{hardware.cpu_model}, {hardware.cores_physical} cores ({hardware.cores_logical} threads)"
    names = [
        f"{a.name} {numbers.size(a.memory_bytes) if a.memory_bytes else ''}".strip() for a in hardware.accelerators
    ]
    accelerators = ", ".join(names) or "no accelerator"
    return line((" hardware ", "dim"), span(cpu), "   ", span(accelerators), "   ", span(hardware.os, "dim"))


def _health(row: NodeMessage) -> Line:
    figures = f"   reputation {row.reputation:.2f}   failures {row.failures}"
    beat = f"   heartbeat {numbers.age(row.heartbeat_age_s)} ago"
    return line((" health   ", "dim"), span(row.health), figures, beat, (_ejected(row), "bad"))


def _ejected(row: NodeMessage) -> str:
    return f"   ejected for another {numbers.coarse(row.ejected_for_s)}" if row.ejected_for_s > 0 else ""


def details(shown: Shown, key: str, width: int) -> list[Line]:
    row = node(shown.snapshot, key)
    said = pane(shown, key, width)
    if row is None:
        return said
    said += [(), ruler("tok/s over the snapshots kept", width)]
    said.append(line(" ", (_spark(shown, key, max(10, min(width - 2, 30))), "accent")))
    said += [
        (),
        ruler("address", width),
        line(" ", span(row.url)),
        line((f" revision {visible(row.revision)}   context {row.context_length}", "dim")),
    ]
    events = [event for event in shown.events if event.node_id == key][:20]
    said += [(), ruler("events", width)]
    said += [
        line(f" {numbers.clock(event.at)}  ", span(event.kind, "accent"), "  ", span(event.text)) for event in events
    ]
    return said if events else [*said, line((" none kept", "dim"))]


def head(shown: Shown, width: int) -> list[Line]:
    return []


def summary(shown: Shown) -> Line:
    nodes = shown.snapshot.nodes
    ready = sum(row.state == "ready" for row in nodes)
    ram = sum(row.hardware.ram_total_bytes for row in nodes)
    return line(
        f"{numbers.count(len(nodes), 'node')}, {ready} ready",
        (f", {numbers.size(ram)} RAM together" if nodes else "", "dim"),
    )


def empty(_shown: Shown) -> Line:
    return line(("no node has joined; start one with: meshnet up node --tracker URL", "dim"))


def copies(shown: Shown, key: str) -> dict[str, str]:
    row = node(shown.snapshot, key)
    if row is None:
        return {}
    said = {"cli": f"meshnet nodes --json | jq '.[] | select(.node_id == \"{row.node_id}\")'"}
    if row.url.startswith(("http://", "https://")):
        said["curl"] = f"curl -s {row.url}/v1/status"
    return {**said, "json": msgspec.json.encode(row).decode()}


NODES = TableSpec(
    name="nodes",
    title="Nodes",
    columns=columns,
    rows=rows,
    pane=pane,
    details=details,
    copies=copies,
    head=head,
    summary=summary,
    empty=empty,
    sorts=(
        Sort("name"),
        Sort("layers"),
        Sort("state"),
        Sort("bench", True),
        Sort("seen", True),
        Sort("queue", True),
        Sort("rep"),
    ),
)
