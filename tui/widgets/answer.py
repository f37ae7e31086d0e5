"""An answer as it streams: Markdown in closed blocks, so that a token costs the same at the end as at the start."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown, Static

from tui.chat import split_chunk
from tui.draw.spans import visible

KEPT = "\n\t"
"""Control characters that Markdown needs."""


class Answer(Vertical):
    """Text only grows; ``raw`` shows it without Markdown. Control characters are made visible, nothing is markup."""

    def __init__(self, raw: bool = False) -> None:
        super().__init__(classes="answer")
        self._raw = raw
        self._growing = ""
        """Text of the block that still grows."""
        self._done: list[str] = []

    def compose(self) -> ComposeResult:
        yield self._block("")

    def _block(self, text: str) -> Markdown | Static:
        if self._raw:
            return Static(Text(text), markup=False)
        return Markdown(text, open_links=False)

    async def write(self, text: str) -> None:
        """Append; call it a few times a second, not once a token."""
        text = visible(text, KEPT)
        self._growing += text
        last = self.children[-1]
        if isinstance(last, Markdown):
            await last.append(text)
        elif isinstance(last, Static):
            last.update(Text(self._growing))
        at = split_chunk(self._growing)
        if at is not None:
            closed, self._growing = self._growing[:at], self._growing[at:]
            self._done.append(closed)
            if isinstance(last, Markdown):
                if self._growing:
                    await last.update(closed)
            elif isinstance(last, Static):
                last.update(Text(closed))
            await self.mount(self._block(self._growing))

    async def set_raw(self, raw: bool) -> None:
        """Draw all of it again, the other way."""
        if raw == self._raw:
            return
        self._raw = raw
        await self.remove_children()
        await self.mount_all(self._block(text) for text in [*self._done, self._growing])
