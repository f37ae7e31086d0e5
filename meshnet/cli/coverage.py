"""``meshnet coverage``: the availability map. A row a node, a cell a layer or a group, gaps in red and in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.silent import answers, depths_heard, held_in_silence
from meshnet.cli.status import print_json
from meshnet.cli.tables import state_of
from meshnet.cli.terminal import console, visible
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import short_node_id
from meshnet.domain.shards import format_layers
from meshnet.wire.messages import CoverageModel, CoverageResponse, NodeMessage

LABEL_COLUMNS = 18
"""Room for a name (10) and a shard (7) before the cells."""
HELD, LOADING, SILENT, EMPTY = "#", "o", "~", "."
"""The console's signs. ASCII: the map must be readable without colours, fonts or UTF-8."""


def coverage(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What GET /v1/coverage answers.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """Show which layers are held, by how many nodes, and what is missing."""
    url = find_tracker(tracker, os.environ, Path.cwd())

    async def question(client: TrackerClient) -> tuple[CoverageResponse, tuple[NodeMessage, ...]]:
        return await client.coverage(model), (await client.nodes()).nodes

    answer, nodes = ask(url, question)
    if as_json:
        print_json(answer)
        return
    out = console()
    if not answer.models:
        out.print("No node serves a model yet. Start some with: meshnet up")
    for covered in answer.models:
        mine = [node for node in nodes if node.model_key == covered.model_key]
        for text in draw(covered, mine, out.width):
            out.print(text, soft_wrap=True)


def draw(covered: CoverageModel, nodes: Sequence[NodeMessage], width: int) -> list[Text]:
    """The map of one model, at most ``width`` columns wide."""
    per_cell = cell_size(covered.n_layers, width)
    groups = [range(at, min(at + per_cell, covered.n_layers)) for at in range(0, covered.n_layers, per_cell)]
    scale = f", {per_cell} layers a cell" if per_cell > 1 else ""
    lines = [Text(f"{visible(covered.model_key)}: {covered.n_layers} layers{scale}", "bold")]
    heard = depths_heard(covered.depths, nodes)
    lines.append(Text(f"{'nodes per layer':<{LABEL_COLUMNS}}") + _depth_row(heard, groups))
    for node in sorted(nodes, key=lambda node: (node.shard_start, node.shard_end, node.name)):
        lines.append(_node_row(node, groups))
    lines += [_words(covered, nodes, heard), Text()]
    return lines


def cell_size(n_layers: int, width: int) -> int:
    """How many layers one cell stands for, so that all fit."""
    return max(1, -(-n_layers // max(1, width - LABEL_COLUMNS)))


def _depth_row(depths: Sequence[int], groups: Sequence[range]) -> Text:
    """The weakest layer of each cell: a group is no better than its gap."""
    row = Text()
    for group in groups:
        depth = min(depths[layer] for layer in group)
        style = "bold red" if depth == 0 else "yellow" if depth == 1 else "green"
        row.append(str(depth) if depth < 10 else "9", style)
    return row


def _node_row(node: NodeMessage, groups: Sequence[range]) -> Text:
    label = f"{visible(node.name or short_node_id(node.node_id))[:9]:<10}{node.shard_start}-{node.shard_end}"
    held = SILENT if not answers(node) else HELD if node.state == "ready" else LOADING
    cells = "".join(held if _touches(node, group) else EMPTY for group in groups)
    said = f"  {state_of(node)}" if held == SILENT else ""
    return Text(f"{label:<{LABEL_COLUMNS}}") + Text(cells + said, "green" if held == HELD else "yellow")


def _touches(node: NodeMessage, group: range) -> bool:
    return node.shard_start <= group[-1] and group[0] <= node.shard_end


def _words(covered: CoverageModel, nodes: Sequence[NodeMessage], heard: Sequence[int]) -> Text:
    silent = held_in_silence(nodes)
    if covered.gaps:
        share = f"{covered.coverage_deficit:.0%} of the model"
        coming = f" On the way: {', '.join(covered.on_the_way)}." if covered.on_the_way else ""
        mute = f" Held, but only by nodes that do not answer: layers {silent}." if silent else ""
        return Text(
            f"Held by no node: layers {', '.join(covered.gaps)} ({share}). No request can be served.{coming}{mute}",
            "bold red",
        )
    if silent:
        return Text(f"Held, but only by nodes that do not answer: layers {silent}.", "bold red")
    if heard != covered.depths and (alone := format_layers(at for at, depth in enumerate(heard) if depth == 1)):
        return Text(f"All layers are held; layers {alone} by one node only that answers.", "yellow")
    if not covered.single:
        return Text("All layers are held by at least two nodes.", "green")
    names = {node.node_id: visible(node.name) for node in nodes}
    losses = "; ".join(
        f"without {names.get(node_id) or short_node_id(node_id)}: {layers}"
        for node_id, layers in sorted(covered.loss.items())
        if layers
    )
    tail = f" Missing {losses}." if losses else ""
    return Text(f"All layers are held; layers {', '.join(covered.single)} by one node only.{tail}", "yellow")
