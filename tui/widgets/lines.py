"""A block of toned lines: headers, panes, maps. Only lines that changed are repainted."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding
from textual.events import MouseScrollDown, MouseScrollUp
from textual.strip import Strip

from tui.draw.spans import Line, fit
from tui.widgets.toned import Toned


class Lines(Toned):
    """Shows ``lines``; scrolls by whole lines where it can be focused."""

    BINDINGS = [
        Binding("up,k", "scroll_by(-1)", "Up", show=False, id="lines.up"),
        Binding("down,j", "scroll_by(1)", "Down", show=False, id="lines.down"),
        Binding("pageup", "scroll_by(-10)", "Page up", show=False, id="lines.page_up"),
        Binding("pagedown", "scroll_by(10)", "Page down", show=False, id="lines.page_down"),
        Binding("home,g", "scroll_by(-1000000)", "Top", show=False, id="lines.top"),
        Binding("end,G", "scroll_by(1000000)", "End", show=False, id="lines.end"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None, can_focus: bool = False) -> None:
        super().__init__(id=id, classes=classes)
        self.can_focus = can_focus
        self.lines: tuple[Line, ...] = ()
        self.top = 0

    def put(self, lines: Sequence[Line]) -> None:
        """Show these lines from now on."""
        before, self.lines = self.lines, tuple(lines)
        if len(before) != len(self.lines):
            self.top = max(0, min(self.top, len(self.lines) - 1))
        width, top = self.size.width, self.top
        for y in range(self.size.height):
            old = before[top + y] if top + y < len(before) else ()
            new = self.lines[top + y] if top + y < len(self.lines) else ()
            if old != new:
                self._repaint_changed(y, fit(old, width), fit(new, width))

    def _repaint_changed(self, y: int, old: Line, new: Line) -> None:
        """Only the cells between the first and the last difference, where both lines have plain ASCII cells."""
        before = [(char, tone) for text, tone in old for char in text]
        after = [(char, tone) for text, tone in new for char in text]
        if len(before) != len(after) or not all(char.isascii() for char, _ in (*before, *after)):
            self.repaint_line(y)
            return
        changed = [x for x, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if changed:
            self.repaint_line(y, changed[0], changed[-1] - changed[0] + 1)

    def render_line(self, y: int) -> Strip:
        index = self.top + y
        return self.strip_of(self.lines[index] if index < len(self.lines) else (), self.size.width)

    def action_scroll_by(self, count: int) -> None:
        top = max(0, min(self.top + count, len(self.lines) - self.size.height))
        if top != self.top:
            self.top = top
            self.refresh()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_scroll_by(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_scroll_by(-3)
