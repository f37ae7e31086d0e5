"""The command palette, which a page key does not break while its list is empty or not laid out yet."""

from __future__ import annotations

from contextlib import suppress

from textual.command import CommandPalette


class Palette(CommandPalette):
    """Textual's own, but for that key: its list looks up a line that it has not."""

    def _action_command_list(self, action: str) -> None:
        with suppress(KeyError, IndexError):
            super()._action_command_list(action)
