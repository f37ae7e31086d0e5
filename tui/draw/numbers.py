"""Numbers as people read them, in few cells. None is ``-``: nothing was measured, which is not zero."""

from __future__ import annotations

import math
import time

NONE = "-"
_AGE_STEPS = ((10, "<10s"), (30, "<30s"), (60, "<1m"))
"""Ages under a minute come in steps: a row that only grows older is not repainted at every poll."""


def tps(value: float | None) -> str:
    """Tokens per second."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.1f}" if value < 1000 else f"{value / 1000:.1f}k"


def ratio(value: float | None) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{value:.2f}"


def percent(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return "<1%" if 0 < value < 0.005 else f"{value * 100:.0f}%"


def age(seconds: float | None) -> str:
    """How long ago, coarsely: ``<10s``, ``7m``, ``3h``, ``2d``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    for limit, word in _AGE_STEPS:
        if seconds < limit:
            return word
    return coarse(seconds)


def coarse(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0, int(seconds))}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m"
    if seconds < 86_400:
        return (
            f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}" if seconds < 36_000 else f"{seconds / 3600:.0f}h"
        )
    return f"{int(seconds // 86_400)}d"


def duration(seconds: float | None) -> str:
    """A measured time: ``188ms``, ``1.4s``, ``2m05``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    return f"{int(seconds // 60)}m{int(seconds % 60):02d}"


def millis(microseconds: float | None) -> str:
    return NONE if microseconds is None else f"{microseconds / 1000:.1f}"


def size(n_bytes: float) -> str:
    """``31G``, ``512M``; binary units."""
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if n_bytes >= scale:
            value = n_bytes / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{n_bytes:.0f}B"


def of(done: float, total: float) -> str:
    """``22/24G``: a part of a whole in the whole's unit."""
    if total <= 0:
        return NONE
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if total >= scale:
            part = done / scale
            return (
                f"{part:.1f}/{total / scale:.1f}{unit}"
                if total / scale < 10
                else f"{part:.0f}/{total / scale:.0f}{unit}"
            )
    return f"{done:.0f}/{total:.0f}B"


def clock(unix_s: float) -> str:
    """Wall time of day, local."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def rpm(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def count(n: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
