"""An answer as it streams: Markdown in closed blocks, so that a token costs the same at the end as at the start."""

from __future__ import annotations

from rich.markdown import Markdown as RichMarkdown
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Markdown, Static

from tui.chat import split_chunk
from tui.draw.spans import visible

LIVE = 2
"""Closed blocks that stay as they are, two screens of text. Older ones are out of sight and become one widget each:
a layout goes through all widgets, and a block of Markdown has one for each paragraph."""
KEPT = "\n\t"
"""Control characters that Markdown needs."""


class Answer:
    """Its blocks are children of the scroll. Text only grows; ``raw`` shows it without Markdown. Control characters are
    made visible, nothing is markup."""

    def __init__(self, scroll: VerticalScroll, raw: bool = False) -> None:
        self._scroll = scroll
        self._raw = raw
        self._growing = ""
        """Text of the block that still grows."""
        self._done: list[str] = []
        self._folded = 0
        """How many of them are one widget each."""
        self._blocks = [self._block("")]

    @property
    def block(self) -> Markdown | Static:
        """The one that grows; mounted by whoever makes the answer."""
        return self._blocks[-1]

    def _block(self, text: str) -> Markdown | Static:
        if self._raw:
            return Static(Text(text), markup=False, classes="answer")
        return Markdown(text, open_links=False, classes="answer")

    async def write(self, text: str) -> None:
        """Append; call it a few times a second, not once a token."""
        text = visible(text, KEPT)
        self._growing += text
        last = self.block
        if isinstance(last, Markdown):
            await last.append(text)
        else:
            last.update(Text(self._growing))
        at = split_chunk(self._growing)
        if at is None:
            return
        closed, self._growing = self._growing[:at], self._growing[at:]
        self._done.append(closed)
        if isinstance(last, Static):
            last.update(Text(closed))
        elif self._growing:
            await last.update(closed)
        self._blocks.append(self._block(self._growing))
        await self._scroll.mount(self.block, after=last)
        if len(self._done) - self._folded > LIVE:
            await self._fold()

    async def _fold(self) -> None:
        at, text = self._folded, self._done[self._folded]
        self._folded += 1
        if not self._raw:
            old, self._blocks[at] = self._blocks[at], Static(RichMarkdown(text), markup=False, classes="answer")
            await self._scroll.mount(self._blocks[at], after=old)
            await old.remove()

    async def set_raw(self, raw: bool) -> None:
        """Draw all of it again, the other way."""
        if raw == self._raw:
            return
        self._raw, self._folded = raw, 0
        old, self._blocks = self._blocks, [self._block(text) for text in [*self._done, self._growing]]
        await self._scroll.mount_all(self._blocks, after=old[-1])
        await self._scroll.remove_children(old)
