"""What an operator sees of what a program wrote."""

from __future__ import annotations

import re

import pyte

from meshnet.bench._terminal import Terminal

UNKNOWN = re.compile(rb"\x1b\[[?<>=][0-9;]*[a-z$]+|\x1b\[[<>=][0-9;]*[uq]")
"""Private modes and the kitty protocol, which pyte would print; they show nothing."""


def screen_of(terminal: Terminal) -> str:
    """The screen as lines of text."""
    screen = pyte.Screen(terminal.columns, terminal.lines)
    pyte.ByteStream(screen).feed(UNKNOWN.sub(b"", bytes(terminal.written)))
    return "\n".join(screen.display)
