"""``meshnet nodes``: who is here, with which layers, on which hardware."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.status import print_json
from meshnet.cli.tables import hardware_table, nodes_table, notes_on
from meshnet.cli.terminal import console


def nodes(
    as_json: Annotated[bool, typer.Option("--json", help="What GET /v1/nodes answers.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """List the nodes: shard, speed, queue, hardware."""
    answer = ask(find_tracker(tracker, os.environ, Path.cwd()), lambda client: client.nodes())
    if as_json:
        print_json(answer)
        return
    out = console()
    if not answer.nodes:
        out.print("No node is here. Start some with: meshnet up")
        return
    out.print(nodes_table(answer.nodes))
    for note in notes_on(answer.nodes):
        out.print(note, soft_wrap=True)
    out.print()
    out.print(hardware_table(answer.nodes))
