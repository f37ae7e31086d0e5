"""What ``--watch`` does: draw again and again until Ctrl-C, in place on a terminal, one after the other in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from meshnet.cli.terminal import visible
from meshnet.domain.errors import MeshnetError


def watch(out: Console, look: Callable[[], RenderableType], every_s: float) -> None:
    """Never returns. What ``look`` cannot see now is said, and waited for; a reader that goes away ends it
    (BrokenPipeError, which ``__main__`` makes a quiet end)."""
    if not out.is_terminal:
        for seen in _looks(look, every_s):
            out.print(seen)
            out.print()
            sys.stdout.flush()
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        for seen in _looks(look, every_s):
            live.update(seen, refresh=True)


def _looks(look: Callable[[], RenderableType], every_s: float) -> Iterator[RenderableType]:
    while True:
        try:
            yield look()
        except MeshnetError as error:
            yield Text(f"{visible(error.message)} Waiting for it.", "red")
        time.sleep(every_s)
