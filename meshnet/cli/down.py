"""``meshnet down``: stop what ``up`` started, gracefully and then firmly, and nothing else."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from meshnet.cli import exits, processes
from meshnet.cli.home import Home, check_name, home_of
from meshnet.cli.terminal import complain, console, visible
from meshnet.domain.errors import NotFound
from meshnet.wire.runfile import RunFile

_SAID = {
    "stopped": "stopped",
    "killed": f"did not stop in {processes.TERM_PATIENCE_S:.0f} s: killed",
    "stale": "was not running any more; its run file is removed",
    "survived": "cannot be stopped",
}


def down(names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all.")] = None) -> None:
    """Stop the daemons of this home (or only those named), nodes first. Fine to run when nothing runs.

    \b
    Examples:
      meshnet down           the whole mesh
      meshnet down n2        one node; the others go on
    """
    home, out = home_of(os.environ), console()
    records = _chosen(home, names or [])
    if not records:
        out.print("Nothing runs.")
        return
    results = processes.stop(home, records)
    for result in results:
        out.print(
            f"{visible(result.record.name):<10}pid {result.record.pid:<8} {_SAID[result.outcome]}", soft_wrap=True
        )
    survivors = [result.record for result in results if result.outcome == "survived"]
    if survivors:
        pids = ", ".join(str(record.pid) for record in survivors)
        complain(f"pid {pids} did not end even when killed: it waits for the system, or belongs to another user.")
        raise typer.Exit(exits.FAILED)


def _chosen(home: Home, names: list[str]) -> list[RunFile]:
    records = home.records()
    if not names:
        return records
    known = {record.name: record for record in records}
    for name in names:
        if name not in known and not home.log_file(check_name(name)).exists():
            there = ", ".join(known) or "nothing"
            raise NotFound(f"No daemon is named {name!r} here. Running: {there}.")
    return [known[name] for name in dict.fromkeys(names) if name in known]
