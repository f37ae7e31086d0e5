"""What a running daemon leaves in ``<state>/run/<name>.json`` for those who look for it or stop it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class RunFile(Struct, frozen=True, kw_only=True):
    """``started``: the process's start in Unix seconds, as the system tells it; a pid alone may be another's by now."""

    kind: Literal["tracker", "node", "relay"]
    name: str
    pid: int
    started: float
    url: str
