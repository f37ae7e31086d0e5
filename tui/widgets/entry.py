"""A line to type in. Each key, enter too, has had its whole effect before the next one is looked at."""

from __future__ import annotations

from collections.abc import Callable

from textual.widgets import Input


class Entry(Input):
    """An Input whose keys the app hands over itself (``write``), and whose enter is a call, not a message."""

    def __init__(self, take: Callable[[str], None], *, id: str, placeholder: str) -> None:
        super().__init__(id=id, placeholder=placeholder, compact=True)
        self._take = take

    def on_mount(self) -> None:
        self.cursor_blink = False

    def write(self, character: str) -> None:
        """What a typed character does."""
        if self.selection.is_empty:
            self.insert_text_at_cursor(character)
        else:
            self.replace(character, *self.selection)

    async def action_submit(self) -> None:
        self._take(self.value)
