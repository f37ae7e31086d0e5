"""The last filter over everything that is drawn, ours and Textual's, where the locale is not UTF-8."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tui.draw.ascii import ascii_text


class AsciiFilter(LineFilter):
    """Replaces what is not ASCII, width for width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(ascii_text(segment.text), segment.style, segment.control)
            for segment in segments
        ]
