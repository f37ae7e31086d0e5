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


def console(tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None) -> None:
    """Watch and steer the mesh on one screen (works over SSH)."""
    if importlib.util.find_spec("textual") is None:
        raise StartError("The console needs textual, which is not installed. Install it with: pip install meshnet-llm")
    url = find_tracker(tracker, os.environ, Path.cwd())
    words = [sys.executable, "-P", "-m", "tui", "--tracker", url]
    sys.stdout.flush()
    # The console becomes this process: signals and the terminal are its own.
    os.execve(words[0], words, dict(os.environ))
