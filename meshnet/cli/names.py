"""What an unnamed node is called: the name that the same command had before, so that it finds its wallet again, or the
next one that nobody has."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from meshnet.cli import processes
from meshnet.cli.home import Home, natural

COMMAND_FILE = "command"
"""In a node's folder: which command began it without a name."""


def name_node(home: Home, command: Mapping[str, Any], reserved: Iterable[str]) -> str:
    """``n1``, ``n2``, …; ``command`` is what the person said, ``reserved`` are names of the mesh file."""
    mark = hashlib.sha256(msgspec.json.encode(dict(command), enc_hook=str, order="sorted")).hexdigest()
    held = set(reserved)
    running = {record.name for record in processes.living(home)}
    taken = held | {record.name for record in home.records()}
    known = [path.parent.name for path in home.nodes_folder.glob(f"*/{COMMAND_FILE}")]
    for name in sorted(known, key=natural):
        if name not in running and name not in held and _mark_of(home, name) == mark:
            return name
    names = (f"n{number}" for number in itertools.count(1))
    name = next(name for name in names if name not in taken and not (home.nodes_folder / name).exists())
    folder = home.nodes_folder / name
    folder.mkdir(parents=True)
    (folder / COMMAND_FILE).write_text(mark)
    return name


def _mark_of(home: Home, name: str) -> str:
    try:
        return (home.nodes_folder / name / COMMAND_FILE).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
