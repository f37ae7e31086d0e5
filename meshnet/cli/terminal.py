"""What reaches the terminal: consoles that stay clean in pipes, and data whose control characters are made visible."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from rich.console import Console
from rich.text import Text

from meshnet.domain.errors import NOT_UTF8, InvalidRequest

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(0x00, 0x20), *range(0x7F, 0xA0))} | {
    # Direction marks reorder what stands on the screen; line and paragraph separators break lines.
    code: f"\\u{code:04x}"
    for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_SHOWN_IN_TEXT = {code: shown for code, shown in _SHOWN.items() if code not in (0x09, 0x0A)}


def visible(text: str) -> str:
    """One line of foreign text: every control or direction character is spelled out."""
    return text.translate(_SHOWN)


def visible_text(text: str) -> str:
    """The same for text of several lines: newlines and tabs stay."""
    return text.translate(_SHOWN_IN_TEXT)


def check_text(text: str) -> str:
    """Text that UTF-8 can carry. Raises InvalidRequest for bytes that were none (the system hands them on as lone
    surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode("utf-8", "surrogateescape" if _from_bytes(text) else "replace")
        raise InvalidRequest(f"{repr(shown[:60])[1:]} is not UTF-8 text; write it in UTF-8.", code=NOT_UTF8) from None
    return text


def _from_bytes(text: str) -> bool:
    """Whether every lone surrogate stands for a byte."""
    return not any(0xD800 <= ord(char) <= 0xDFFF and not 0xDC80 <= ord(char) <= 0xDCFF for char in text)


def prepare_streams() -> None:
    """A character the terminal's encoding lacks is shown as an escape, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence_broken_pipe() -> None:
    """After the reader went away: whatever is still buffered goes nowhere, so that the exit stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Standard output. Colours and styles only on a terminal, and not with NO_COLOR; markup is never read from data."""
    return Console(markup=False, highlight=False, emoji=False)


def error_console() -> Console:
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def dim(text: str) -> Text:
    return Text(visible(text), style="dim")


def complain(message: str, *, hint: str | None = None) -> None:
    """An error as people read it: one line on standard error, and what to do about it."""
    err = error_console()
    err.print(Text("error: ", style="bold red") + Text(visible_text(message)), soft_wrap=True)
    if hint:
        err.print(Text(visible_text(hint)), soft_wrap=True)


def format_bytes(size: float) -> str:
    """``1234567`` -> ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def format_age(seconds: float) -> str:
    """``75`` -> ``1m15s``: two units at most."""
    whole = max(0, int(seconds))
    for unit, size, smaller, step in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // step}{smaller}"
    return f"{whole}s"
