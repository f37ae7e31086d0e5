"""What an operator sees of what a program wrote."""

from __future__ import annotations

import re

import pyte

from meshnet.bench._terminal import Terminal

UNKNOWN = re.compile(rb"\x1b\[[?<>=][0-9;]*[a-z$]+|\x1b\[[<>=][0-9;]*[uq]")
"""Private modes and the kitty protocol, which pyte would print; they show nothing."""
FRAME_END = b"\x1b[?2026l"
"""The end of one synchronised update: before it the screen is half drawn."""


class Watched:
    """The screen of a terminal, kept up to date; resizing begins a new one. ``whole_updates`` False: what runs in it
    marks no updates (tmux does not)."""

    def __init__(self, terminal: Terminal, whole_updates: bool = True) -> None:
        self._whole_updates = whole_updates
        self._terminal = terminal
        self._screen = pyte.Screen(terminal.columns, terminal.lines)
        self._stream = pyte.ByteStream(self._screen)
        self._seen = 0

    def text(self) -> str:
        """The lines of the last whole update."""
        written = self._terminal.written
        end = written.rfind(FRAME_END) + len(FRAME_END) if self._whole_updates else len(written)
        if end > self._seen:
            self._stream.feed(UNKNOWN.sub(b"", bytes(self._terminal.written[self._seen : end])))
            self._seen = end
        return "\n".join(self._screen.display)


def screen_of(terminal: Terminal) -> str:
    """The screen now, read from the start."""
    return Watched(terminal).text()
