"""The console without a screen: one line per change, for screen readers, serial lines and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshnet.wire.status import Snapshot
from tui.draw import numbers
from tui.draw.ascii import ascii_text
from tui.draw.spans import visible
from tui.model import changes
from tui.poller import Poller


async def follow(poller: Poller, say: Callable[[str], None], wall: Callable[[], float], once: bool = False) -> int:
    """Poll and say what changed, for ever (or ``once``). Returns the exit code: 0, or 3 where ``once`` found nobody."""
    before: Snapshot | None = None
    silent = False
    while True:
        snapshot = await poller.tick()
        stamp = numbers.clock(wall())
        if snapshot is None:
            if not silent:
                say(f"{stamp} no answer: {visible(poller.link.error)}")
            silent = True
        else:
            if silent:
                say(f"{stamp} the tracker answers again")
            silent = False
            for text in changes(before, snapshot):
                say(f"{stamp} {text}")
            before = snapshot
        if once:
            return 3 if silent else 0
        await asyncio.sleep(poller.wait_s)


def printer(write: Callable[[str], object], flush: Callable[[], object], only_ascii: bool) -> Callable[[str], None]:
    """A sentence to a line, at once, in the characters that the other end can show."""

    def say(text: str) -> None:
        write((ascii_text(text) if only_ascii else text) + "\n")
        flush()

    return say
