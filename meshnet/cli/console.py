"""``meshnet console``: starts the operator's screen, which is a program of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli.connect import find_tracker
from meshnet.domain.errors import StartError


def console(
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="One line a change instead of a screen.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --plain: say what there is, and end.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="No chat, no race, no file is written.")] = False,
    theme: Annotated[str | None, typer.Option(help="Name of a theme.")] = None,
    mouse: Annotated[bool, typer.Option("--mouse", help="Take the mouse.")] = False,
    only_ascii: Annotated[bool, typer.Option("--ascii", help="Only ASCII signs.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with a [console] table.")] = None,
) -> None:
    """Watch and steer the mesh on one screen (works over SSH)."""
    if not plain and importlib.util.find_spec("textual") is None:
        raise StartError("The console needs textual, which is not installed. Install it with: pip install meshnet-llm")
    switches = {"--plain": plain, "--once": once, "--read-only": read_only, "--mouse": mouse, "--ascii": only_ascii}
    words = [sys.executable, "-P", "-m", "tui", "--tracker", find_tracker(tracker, os.environ, Path.cwd())]
    words += [flag for flag, is_on in switches.items() if is_on]
    words += [
        word for flag, value in (("--theme", theme), ("--config", config)) if value for word in (flag, str(value))
    ]
    sys.stdout.flush()
    # The console becomes this process: signals and the terminal are its own.
    os.execve(words[0], words, dict(os.environ))
