"""A small choice over the screen: what to copy, which route. Shows what each choice means before it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen

from tui.draw.spans import Line, line, span, wrap
from tui.draw.table import Column, Row
from tui.widgets.lines import Lines
from tui.widgets.live_table import LiveTable


@dataclass(frozen=True, slots=True)
class Choice:
    """``key`` comes back when it is taken; ``text`` is shown in full below the list."""

    key: str
    label: str
    text: str = ""


class MenuScreen(ModalScreen[str | None]):
    """Returns the taken choice's key, or None."""

    BINDINGS = [Binding("escape,q", "dismiss", "Back", id="menu.back")]

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._choices = tuple(choices)

    def compose(self) -> ComposeResult:
        with Vertical(id="menu"):
            yield Lines(classes="menu-title")
            yield LiveTable((Column("label", self._title, 20, grow=True),))
            yield Lines(classes="menu-text")

    def on_mount(self) -> None:
        rows = [Row(choice.key, {"label": line(span(choice.label))}) for choice in self._choices]
        table = self.query_one(LiveTable)
        table.styles.height = min(len(rows) + 1, 14)
        table.put(rows)
        table.focus()
        self.call_after_refresh(self._describe)

    @on(LiveTable.Highlighted)
    def _describe(self) -> None:
        block = self.query_one(".menu-text", Lines)
        key = self.query_one(LiveTable).cursor_key
        choice = next((choice for choice in self._choices if choice.key == key), None)
        said: list[Line] = []
        for text in (choice.text if choice else "").splitlines()[:40]:
            said += wrap(line(span(text, "dim")), max(20, block.size.width))
        block.put(said)

    @on(LiveTable.Opened)
    def _taken(self, event: LiveTable.Opened) -> None:
        self.dismiss(event.key)

    def action_dismiss(self, result: str | None = None) -> None:  # type: ignore[override]
        self.dismiss(None)
