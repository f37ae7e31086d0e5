"""Tables of nodes and models for 80 columns: plain columns without frames, so that pipes can cut them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from meshnet.cli.home import natural
from meshnet.cli.silent import answers, held_in_silence
from meshnet.cli.terminal import format_age, format_bytes, visible
from meshnet.domain.ids import short_node_id
from meshnet.wire.messages import CoverageModel, HardwareMessage, ModelMessage, NodeMessage

FALSE_CLAIM = 0.5
"""Of the claimed speed: below it a machine is overloaded, or says too much of itself."""
_STATE_STYLES = {"ready": "green", "loading": "yellow", "draining": "yellow", "suspect": "yellow", "out": "red"}


def plain_table(*columns: str) -> Table:
    """Numbers stand right: a column whose title ends in ``>`` is one."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in columns:
        right = title.endswith(">")
        table.add_column(title.rstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=False)
    return table


def nodes_table(nodes: Sequence[NodeMessage]) -> Table:
    """How nodes are reached is a column where some are not dialled directly."""
    way = ["way"] if any(node.relayed or node.unreachable for node in nodes) else []
    table = plain_table("node", "shard", "model", "state", *way, "queue>", "tok/s>", "claim%>", "heard>", "id")
    for node in by_name(nodes):
        state = state_of(node)
        table.add_row(
            visible(node.name),
            f"{node.shard_start}-{node.shard_end}",
            visible(node.model_key),
            Text(state, style=_STATE_STYLES.get(state, "red")),
            *(_way(node) for _ in way),
            str(max(node.queue_depth, node.tracker_in_flight)),
            f"{node.benchmark_tokens_per_sec:.1f}",
            _seen(node.observed_ratio),
            format_age(node.heartbeat_age_s),
            visible(short_node_id(node.node_id)),
        )
    return table


def notes_on(nodes: Sequence[NodeMessage]) -> list[Text]:
    """Who gets no calls, and what stands in the way."""
    lost = [node for node in by_name(nodes) if node.unreachable]
    return [Text(f"{visible(node.name)} gets no calls: {visible(node.unreachable)}", "yellow") for node in lost]


def _way(node: NodeMessage) -> Text:
    if node.unreachable:
        return Text("none", "red")
    return Text("relayed", "yellow") if node.relayed else Text("direct")


def hardware_table(nodes: Sequence[NodeMessage]) -> Table:
    table = plain_table("node", "cpu", "cores>", "ram free>", "ram>", "kv free>", "url")
    for node in by_name(nodes):
        hardware = node.hardware
        table.add_row(
            visible(node.name),
            _processors(hardware),
            str(hardware.cores_logical),
            format_bytes(hardware.ram_available_bytes),
            format_bytes(hardware.ram_total_bytes),
            format_bytes(node.kv_free_bytes),
            visible(node.url),
        )
    return table


def _seen(ratio: float | None) -> Text:
    """What its calls show of the speed it claims; half of it is worth a look."""
    if ratio is None:
        return Text("-")
    return Text(f"{ratio:.0%}", style="red" if ratio < FALSE_CLAIM else "")


def _processors(hardware: HardwareMessage) -> str:
    cpu = visible(hardware.cpu_model)[:24]
    return f"{cpu} + {visible(hardware.accelerators[0].name)[:16]}" if hardware.accelerators else cpu


def models_table(
    models: Sequence[ModelMessage], coverage: Sequence[CoverageModel], nodes: Sequence[NodeMessage] = ()
) -> Table:
    gaps = {covered.model_key: covered.gaps for covered in coverage}
    table = plain_table("model", "layers>", "nodes>", "context>", "coverage")
    for model in models:
        silent = held_in_silence(node for node in nodes if node.model_key == model.id)
        words, style = ("all layers held", "green") if model.ready else (_missing(gaps.get(model.id, ()), model), "red")
        if silent and not gaps.get(model.id):
            words, style = f"no answer: {silent}", "red"
        table.add_row(
            visible(model.id),
            str(model.n_layers),
            _heard(model, nodes),
            str(model.context_length),
            Text(words, style=style),
        )
    return table


def _heard(model: ModelMessage, nodes: Sequence[NodeMessage]) -> str:
    """``3``, or ``2 of 3`` where not all answer."""
    mute = sum(node.live and not answers(node) for node in nodes if node.model_key == model.id)
    return f"{max(0, model.nodes - mute)} of {model.nodes}" if mute else str(model.nodes)


def by_name(nodes: Sequence[NodeMessage]) -> list[NodeMessage]:
    """As people expect them, ``n2`` before ``n10``."""
    return sorted(nodes, key=lambda node: (*natural(node.name), node.node_id))


def state_of(node: NodeMessage) -> str:
    """One word: what a person must know first."""
    if not node.live:
        return "out"
    if node.suspect:
        return "suspect"
    return node.state if node.health == "ok" else visible(node.health)


def _missing(gaps: Sequence[str], model: ModelMessage) -> str:
    if gaps:
        return f"layers {', '.join(gaps)} missing"
    return f"{model.coverage_deficit:.0%} missing" if model.coverage_deficit else "not ready"
