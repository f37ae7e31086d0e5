"""Without a UTF-8 locale nothing but ASCII goes to the terminal: every other sign becomes one as wide."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.cells import cell_len

_SIGNS = {
    "─": "-",
    "━": "=",
    "│": "|",
    "┃": "|",
    "┌": "+",
    "┐": "+",
    "└": "+",
    "┘": "+",
    "├": "+",
    "┤": "+",
    "┬": "+",
    "┴": "+",
    "┼": "+",
    "╭": "+",
    "╮": "+",
    "╰": "+",
    "╯": "+",
    "█": "#",
    "▉": "#",
    "▊": "#",
    "▋": "=",
    "▌": "=",
    "▍": "-",
    "▎": "-",
    "▏": ".",
    "▇": "#",
    "▆": "%",
    "▅": "+",
    "▄": "=",
    "▃": "-",
    "▂": ":",
    "▁": ".",
    "▐": "|",
    "▓": "#",
    "▒": "+",
    "░": ".",
    "▾": "v",
    "▴": "^",
    "▸": ">",
    "•": "*",
    "·": ".",
    "…": "~",
    "→": ">",
    "←": "<",
    "±": "~",
    "×": "x",
    "÷": "/",
    "–": "-",
    "—": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "▔": "-",
    "▕": "|",
    "▀": "-",
    "▪": "*",
    "▫": "o",
    "●": "*",
    "○": "o",
    "⭘": "o",
    "≈": "~",
    "≥": ">",
    "≤": "<",
    "∞": "8",
    "Δ": "D",
}
"""Ours, Textual's and Markdown's signs; every other character becomes ``?`` in as many cells as it had."""


def ascii_text(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _SIGNS.get(char, "?" * cell_len(char)) for char in text)


_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python puts into LC_CTYPE when it finds the C locale (PEP 538): its own wish, not the terminal's."""


def speaks_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale (LC_ALL, LC_CTYPE, LANG: the first that is set) is a UTF-8 one; none set is not."""
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if environ.get("LC_CTYPE") in _COERCED and environ.get("LANG", "") in ("", "C", "POSIX"):
        names.remove("LC_CTYPE")
    for name in names:
        if environ.get(name):
            return "utf8" in environ[name].casefold().replace("-", "")
    return os.name == "nt"
