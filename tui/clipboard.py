"""Copying to the operator's own machine through the terminal: OSC 52, wrapped where tmux or screen stand between."""

from __future__ import annotations

import base64
from collections.abc import Mapping

MAX_ENCODED_BYTES = 74_994
"""What common terminals take in one OSC 52; more is dropped by them without a word, so we refuse it with one."""


def osc52(text: str, environ: Mapping[str, str]) -> str | None:
    """The escape sequence that puts ``text`` on the clipboard; None where it is too long to arrive."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if len(encoded) > MAX_ENCODED_BYTES:
        return None
    plain = f"\x1b]52;c;{encoded}\x07"
    if environ.get("TMUX"):
        return f"\x1bPtmux;\x1b{plain}\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        return f"\x1bP{plain}\x1b\\"
    return plain
