"""``meshnet logs``: what the daemons wrote."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli.home import Home, home_of
from meshnet.cli.readiness import log_tail
from meshnet.cli.terminal import console, visible
from meshnet.domain.errors import NotFound

LOOK_EVERY_S = 0.25
"""How late a followed line may be."""
TAIL_LINES = 20


def logs(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Default: all daemons.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each.")
    ] = TAIL_LINES,
) -> None:
    """Show the last lines that the daemons logged.

    \b
    Examples:
      meshnet logs              the last 20 lines of every daemon
      meshnet logs -f n2        follow one node
    """
    home = home_of(os.environ)
    files = _files(home, names or [])
    offsets = {path: path.stat().st_size for path in files}
    for path in files:
        for text in log_tail(path, lines=lines) if lines else ():
            _print(path, text, len(files) > 1)
    while follow:
        time.sleep(LOOK_EVERY_S)
        for path in files:
            offsets[path] = _print_new(path, offsets[path], len(files) > 1)


def _files(home: Home, names: list[str]) -> list[Path]:
    there = {path.stem: path for path in sorted(home.logs_folder.glob("*.log"))}
    for name in names:
        if name not in there:
            raise NotFound(f"{name!r} has no log in {home.logs_folder}. Logs: {', '.join(there) or 'none yet'}.")
    if not there:
        raise NotFound(f"There are no logs in {home.logs_folder} yet. Start a mesh with: meshnet up")
    return [there[name] for name in names] if names else list(there.values())


def _print_new(path: Path, offset: int, with_name: bool) -> int:
    """Print whole lines beyond ``offset``; returns where the next look begins. A log that was set aside starts anew."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(offset if size >= offset else 0)
            data = stream.read()
            start = offset if size >= offset else 0
    except FileNotFoundError:
        return 0
    whole = data[: data.rfind(b"\n") + 1]
    for text in whole.decode("utf-8", "replace").splitlines():
        _print(path, text, with_name)
    return start + len(whole)


def _print(path: Path, text: str, with_name: bool) -> None:
    console().print(f"{path.stem}: {visible(text)}" if with_name else visible(text), soft_wrap=True)
