"""``meshnet bench NAME``: starts a benchmark, which is a program of its own (it may need torch)."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def bench(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [FLAGS]", help="Which one, and its flags.", show_default=False)
    ] = None,
) -> None:
    """Measure: chat, tracker, routing, learning, failover, console, relay, ring.

    \b
    meshnet bench                       which there are
    meshnet bench chat --threads 1      a mesh against transformers' generate
    meshnet bench routing --json        the routing policies on simulated meshes
    meshnet bench NAME --help           flags of one

    docs/benchmarks.md has recorded figures and what they mean.
    """
    sys.stdout.flush()
    argv = [sys.executable, "-P", "-m", "meshnet.bench", *(words or ["--help"])]
    # The benchmark becomes this process: its output and Ctrl-C are its own.
    os.execve(argv[0], argv, dict(os.environ))
