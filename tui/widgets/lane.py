"""One column of chat: turns one under the other, and the hops of the last answer. A race has two of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from meshnet.domain.errors import MeshnetError
from meshnet.wire.routing import ExplainResponse
from tui.chat import Choice, Turn, between_hops, counterfactual, status_line
from tui.draw import calls as draw_calls
from tui.draw.spans import Line, cut, fit, line, span, visible, wrap
from tui.model import Shown, call
from tui.source import ChatAsk, ChatText, MeshSource
from tui.widgets.answer import Answer
from tui.widgets.lines import Lines

FLUSH_S = 0.1
"""What streams is drawn ten times a second: below what the eye sees, a third of the cost of every token."""


class Lane(Vertical):
    """Asks over one route and keeps its own turns."""

    def __init__(self, name: str) -> None:
        super().__init__(id=f"lane-{name}", classes="lane")
        self.choice = Choice()
        self.turns: list[Turn] = []
        self.raw = False
        self._answers: list[Answer] = []
        self.auto: ExplainResponse | None = None
        """What auto would have done with the last question; None while unknown."""
        self.auto_error = ""
        # Held, not looked for: a search goes through every block of every answer.
        self._title, self._hop_lines = Lines(classes="lane-title"), Lines(classes="hops")
        self.scroll = VerticalScroll(classes="turns", can_focus=True)

    def compose(self) -> ComposeResult:
        yield self._title
        yield self.scroll
        yield self._hop_lines

    @property
    def is_streaming(self) -> bool:
        return bool(self.turns) and self.turns[-1].is_running

    async def ask(self, source: MeshSource, ask: ChatAsk, prompt: str, clock: Callable[[], float]) -> None:
        """Stream one answer to its end. Cancelled, it closes the connection, which stops the generation."""
        turn = Turn(prompt, clock(), self.choice, ask.seed)
        self.turns.append(turn)
        answer = await self._open_turn(prompt)
        pending, flushed = "", turn.asked_at
        try:
            async with aclosing(source.chat(ask)) as stream:
                async for piece in stream:
                    turn = turn.with_piece(piece, clock())
                    self.turns[-1] = turn
                    pending += piece.text if isinstance(piece, ChatText) else ""
                    if pending and clock() - flushed >= FLUSH_S:
                        await answer.write(pending)
                        pending, flushed = "", clock()
            if turn.is_running:
                turn = replace(turn, finish="failed", error="the answer ended without its end")
        except MeshnetError as error:
            turn = replace(turn, finish="failed", error=error.message)
        finally:
            if turn.is_running:
                turn = replace(turn, finish="stopped")
            self.turns[-1] = turn
        if pending:
            await answer.write(pending)

    async def ask_auto(self, source: MeshSource, model: str) -> None:
        """Ask what auto would do now: nothing is sent or changed."""
        self.auto, self.auto_error = None, ""
        try:
            self.auto = await source.explain(model, (), None)
        except MeshnetError as error:
            self.auto_error = f"  what auto would have used is not known: {error.message}"

    async def _open_turn(self, prompt: str) -> Answer:
        self.scroll.anchor()
        answer = Answer(self.scroll, self.raw)
        question = Static(visible(prompt, "\n"), markup=False, classes="question")
        await self.scroll.mount(question, answer.block)
        self._answers.append(answer)
        return answer

    async def set_raw(self, raw: bool) -> None:
        self.raw = raw
        for answer in self._answers:
            await answer.set_raw(raw)

    async def clear(self) -> None:
        self.turns.clear()
        self._answers.clear()
        await self.scroll.remove_children()

    def show(self, shown: Shown | None, title: str) -> None:
        """Draw title, status of the last answer and its hops."""
        width = max(1, self.size.width)
        self._title.put([fit(line((f" {title} ", "title"), span(self.choice.label)), width)])
        self._hop_lines.put(self._hops(shown, width))

    def _hops(self, shown: Shown | None, width: int) -> list[Line]:
        if not self.turns:
            return []
        turn = self.turns[-1]
        said = wrap(status_line(shown, turn), width, 2)
        if shown is None:
            return said
        if turn.is_running:
            return [cut(parts, width) for parts in said]
        found = call(shown.snapshot, turn.call_id)
        said += wrap(self._instead(shown, turn, found.tps if found else None), width, 2)
        if found and found.attempts:
            said += draw_calls.hop_lines(shown, found.attempts[-1], width)
            said += [between_hops(found)]
        return [cut(parts, width) for parts in said if parts]

    def _instead(self, shown: Shown, turn: Turn, measured: float | None) -> Line:
        if self.auto is None and self.auto_error:
            return line(span(self.auto_error, "dim"))
        return counterfactual(shown, turn, self.auto, measured or turn.tps)
