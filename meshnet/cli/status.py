"""``meshnet status``: the tracker, the models it can answer for, the nodes, and what of this home does not run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from meshnet.cli import processes
from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.home import Home, home_of
from meshnet.cli.silent import held_in_silence
from meshnet.cli.tables import models_table, nodes_table
from meshnet.cli.terminal import complain, console, format_age, visible
from meshnet.cli.watch import watch as watch_it
from meshnet.client.snapshot import take_snapshot
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError
from meshnet.wire.status import Snapshot

WATCH_EVERY_S = 2.0
"""Nodes are heard every 5 s; 2 s shows a change soon and costs four small requests."""
CALLS_IN_SNAPSHOT = 20
"""Newest calls in ``--json``: enough to see what goes on; all of them are at GET /v1/calls."""


def status(
    as_json: Annotated[bool, typer.Option("--json", help="One snapshot as JSON (docs/cli.md).")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """Show what runs and what it serves.

    \b
    Examples:
      meshnet status
      meshnet status --json | python -m json.tool
    """
    home, out = home_of(os.environ), console()
    try:
        url = find_tracker(tracker, os.environ, Path.cwd())
        snapshot = ask(url, take)
    except MeshnetError:
        if as_json:
            print_json(Snapshot(taken_at=time.time(), trackers=()))
        if not as_json:
            _print_local(out, home, None)
        raise
    if as_json:
        print_json(snapshot)
        return
    if watch:
        watch_it(out, lambda: render(ask(url, take)), WATCH_EVERY_S)
    _print(out, home, snapshot)


async def take(tracker: TrackerClient) -> Snapshot:
    """The snapshot that the console draws, with fewer calls."""
    return await take_snapshot(tracker, tracker.url, time.time(), CALLS_IN_SNAPSHOT)


def print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def render(snapshot: Snapshot) -> RenderableType:
    parts: list[RenderableType] = []
    for tracker in snapshot.trackers:
        since = f"  up {format_age(tracker.uptime_s)}" if tracker.uptime_s else ""
        version = visible(tracker.version) or "unknown"
        parts.append(Text(f"tracker {visible(tracker.url)}  version {version}{since}", "bold"))
    if snapshot.models:
        parts += ["", models_table(snapshot.models, snapshot.coverage, snapshot.nodes)]
    else:
        parts.append("No model is served.")
    for model in snapshot.models:
        if silent := held_in_silence(node for node in snapshot.nodes if node.model_key == model.id):
            words = f"{visible(model.id)}: held, but only by nodes that do not answer: {silent}"
            parts.append(Text(words, "bold red"))
    parts += ["", nodes_table(snapshot.nodes)] if snapshot.nodes else ["No node is here."]
    return Group(*parts)


def _print(out: Console, home: Home, snapshot: Snapshot) -> None:
    out.print(render(snapshot))
    _print_local(out, home, {node.name for node in snapshot.nodes if node.live})


def _print_local(out: Console, home: Home, live_names: set[str] | None) -> None:
    """What the run files of this home say that the tracker does not: daemons that died, or have not joined it. None
    means that no tracker answered."""
    for record in home.records():
        who = f"{visible(record.name)} (pid {record.pid})"
        if not processes.is_running(record):
            complain(f"{who} does not run any more. Start it again with: meshnet up")
        elif live_names is None:
            out.print(f"{who} runs.", soft_wrap=True)
        elif record.kind == "node" and record.name not in live_names:
            out.print(f"{who} runs, but has not joined this tracker.", soft_wrap=True)
