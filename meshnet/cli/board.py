"""Live progress of a mesh that comes up: one line a daemon on a terminal, one line a change in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from meshnet.cli.readiness import Sight
from meshnet.cli.terminal import visible

_STYLES = {"ready": "green", "failed": "bold red"}


class Board:
    """Use as a context manager; ``tell`` shows the latest look at the daemons."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._spinner = Spinner("line")
        self._told: dict[str, str] = {}

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, sights: Sequence[Sight]) -> None:
        if self._live is not None:
            self._live.update(Group(*(self._row(sight) for sight in sights)))
            return
        for sight in sights:
            if self._told.get(sight.name) != sight.phase:
                self._told[sight.name] = sight.phase
                self._console.print(line(sight), soft_wrap=True)

    def _row(self, sight: Sight) -> Text | Spinner:
        if sight.is_final:
            return line(sight)
        self._spinner = self._spinner if self._spinner.text == line(sight) else Spinner("line", line(sight))
        return self._spinner


def line(sight: Sight) -> Text:
    """``n1        loading   loading layers 0-14: 40 % of 60.1 MB``."""
    return Text.assemble(
        f"{visible(sight.name):<10}",
        (f"{sight.phase:<9}", _STYLES.get(sight.phase, "yellow")),
        f" {visible(sight.detail or sight.url)}",
    )
