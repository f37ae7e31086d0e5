"""Everything about one row, over the whole screen; it goes on living while it is read."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from tui.draw.spans import cut, line
from tui.draw.spec import TableSpec
from tui.model import Shown
from tui.widgets.lines import Lines


class DetailsScreen(ModalScreen[None]):
    """``show`` redraws it with a newer moment."""

    BINDINGS = [
        Binding("escape,q,enter", "back", "Back", id="details.back"),
        Binding("y", "copy", "Copy as", id="details.copy"),
        Binding("P", "app.prompts", "Show prompts", id="details.prompts"),
    ]

    def __init__(self, spec: TableSpec, key: str, shown: Shown) -> None:
        super().__init__()
        self.spec, self.key, self.shown = spec, key, shown

    def compose(self) -> ComposeResult:
        yield Lines(id="details", can_focus=True)
        yield Lines(id="details-keys")

    def on_mount(self) -> None:
        self.query_one("#details").focus()
        self.call_after_refresh(self.show, self.shown)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show, self.shown)

    def show(self, shown: Shown) -> None:
        self.shown = shown
        block = self.query_one("#details", Lines)
        width = max(1, block.size.width)
        block.put([cut(parts, width) for parts in self.spec.details(shown, self.key, width)])
        keys = line(
            ("esc", "key"), (" back  ", "dim"), ("up down", "key"), (" scroll  ", "dim"), ("y", "key"), (" copy", "dim")
        )
        self.query_one("#details-keys", Lines).put([keys])

    def action_back(self) -> None:
        self.dismiss()

    def action_copy(self) -> None:
        from tui.views.table_view import TableView

        self.app.screen_stack[0].post_message(TableView.Copy(self.spec, self.key))
