"""Toned text: the one thing that everything on screen is made of.

A line is a tuple of spans, a span is text and a tone; the theme says what a tone looks like. Text from the mesh passes
``visible`` once, on its way into a span, so that no control character and no markup ever reaches the terminal.
"""

from __future__ import annotations

import unicodedata
from typing import Literal

from rich.cells import cell_len, set_cell_size

Tone = Literal["", "dim", "strong", "good", "warn", "bad", "accent", "title", "key", "tab"]
Span = tuple[str, Tone]
Line = tuple[Span, ...]

TONES: tuple[Tone, ...] = ("dim", "strong", "good", "warn", "bad", "accent", "title", "key", "tab")
BLANK: Line = ()
MAX_SHOWN_CHARS = 4_000
"""Of one piece of foreign text: more does not fit any screen, and a node must not make us draw a megabyte."""

_DROPPED = {0xFE0E, 0xFE0F}
"""Variation selectors: terminals disagree on the width they give; the bare sign has one width everywhere."""
_SHOWN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Controls, formats (bidi, zero width), surrogates, private use, line separators."""


def visible(text: str, keep: str = "") -> str:
    """``text`` without anything that a terminal would obey: ESC becomes ``^[``, U+202E becomes ``<202E>``.

    Characters in ``keep`` (newlines of a chat answer) stay.
    """
    cut = text[:MAX_SHOWN_CHARS] if not keep else text
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(char if char in keep else _visible_char(char) for char in cut)


def _visible_char(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return f"^{chr(code + 64)}"
    if code == 0x7F:
        return "^?"
    if code in _DROPPED:
        return ""
    if unicodedata.category(char) in _SHOWN:
        return f"<{code:04X}>"
    return char


def span(text: object, tone: Tone = "") -> Span:
    """A span of foreign text, made visible."""
    return visible(str(text)), tone


def line(*parts: Span | str) -> Line:
    """A line of spans; bare strings are our own words without tone."""
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def width_of(parts: Line) -> int:
    return sum(cell_len(text) for text, _ in parts)


def plain(parts: Line) -> str:
    return "".join(text for text, _ in parts)


def cut(parts: Line, width: int) -> Line:
    """At most ``width`` cells, ending in an ellipsis where something was left out."""
    if width <= 0:
        return ()
    if width_of(parts) <= width:
        return parts
    kept: list[Span] = []
    room = width - 1
    for text, tone in parts:
        wide = cell_len(text)
        if wide > room:
            kept.append((set_cell_size(text, room) + "…", tone))
            return tuple(kept)
        kept.append((text, tone))
        room -= wide
    return tuple(kept)


def fit(parts: Line, width: int, right: bool = False) -> Line:
    """Exactly ``width`` cells: cut or padded."""
    shown = cut(parts, width)
    gap = width - width_of(shown)
    if gap <= 0:
        return shown
    pad: Span = (" " * gap, "")
    return (pad, *shown) if right else (*shown, pad)


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` and ``right`` at the two ends of ``width`` cells; the right one stays whole where room is scarce."""
    right = cut(right, width)
    return (*fit(left, width - width_of(right)), *right)


def ruler(title: str, width: int, tail: str = "") -> Line:
    """A dividing line with words in it."""
    head = f"── {title} " if title else ""
    end = f" {tail} ──" if tail else ""
    fill = "─" * max(0, width - cell_len(head) - cell_len(end))
    return cut(((head, "title"), (fill, "dim"), (end, "dim")), width)


def wrap(parts: Line, width: int, indent: int = 3) -> list[Line]:
    """``parts`` over as many lines as it needs, broken at blanks; following lines are indented."""
    if width_of(parts) <= width or width <= indent + 8:
        return [cut(parts, width)]
    lines: list[Line] = []
    now: list[Span] = []
    used = 0
    for word, tone in _words(parts):
        wide = cell_len(word.rstrip())
        if now and used + wide > width:
            lines.append(tuple(now))
            now, used = list(line(" " * indent)), indent
            word = word.lstrip()
        now.append((word, tone))
        used += cell_len(word)
    return [cut(_trimmed(parts), width) for parts in [*lines, tuple(now)]]


def _trimmed(parts: Line) -> Line:
    return (*parts[:-1], (parts[-1][0].rstrip(), parts[-1][1])) if parts else parts


def _words(parts: Line) -> list[Span]:
    """Each word with the blanks after it."""
    found: list[Span] = []
    for text, tone in parts:
        start = 0
        for i in range(1, len(text)):
            if text[i] != " " and text[i - 1] == " ":
                found.append((text[start:i], tone))
                start = i
        found.append((text[start:], tone))
    return found
