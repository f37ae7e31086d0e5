"""A widget that draws toned lines itself, cell by cell, and repaints only what it is told has changed."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.draw.spans import TONES, Line, fit


class Toned(Widget):
    """Base of what draws lines: the theme's colours come from the component class ``tone--<tone>``."""

    COMPONENT_CLASSES = {f"tone--{tone}" for tone in TONES} | {"tone--cursor", "tone--gone"}

    def strip_of(self, parts: Line, width: int, over: Style | None = None) -> Strip:
        """``parts`` as exactly ``width`` cells; ``over`` takes every tone's place (the cursor's row is one block)."""
        width = max(0, width)
        base = self.rich_style
        segments = []
        for text, tone in fit(parts, width):
            if not text:
                continue
            segments.append(Segment(text, base + (over or self.style_of(tone)) if over or tone else base))
        return Strip(Segment.simplify(segments), width)

    def on_hide(self) -> None:
        """A hidden widget has no cells that could change: all of it is drawn when it comes back."""
        self.refresh()

    def style_of(self, name: str) -> Style:
        return self.get_component_rich_style(f"tone--{name}", partial=True)

    def repaint_line(self, y: int, x: int = 0, width: int | None = None) -> None:
        """Repaint one line of the content, or ``width`` cells of it from ``x``."""
        self.refresh(Region(x, y, self.size.width - x if width is None else width, 1))
