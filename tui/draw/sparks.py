"""Bars and sparklines in one line of text. Drawn in block characters; without UTF-8 tui/draw/ascii.py replaces them."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """The last ``width`` values against ``top`` (their own maximum if None); what was not measured is a blank."""
    shown = list(values)[-width:]
    highest = top if top else max((v for v in shown if v is not None), default=0.0)
    return "".join(_block(value, highest) for value in shown).rjust(width)


def _block(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    if highest <= 0 or value <= 0:
        return BLOCKS[0]
    return BLOCKS[min(len(BLOCKS) - 1, int(value / highest * (len(BLOCKS) - 1) + 0.5))]


def bar(share: float, width: int) -> str:
    """A horizontal bar of ``share`` (0..1) of ``width`` cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def squeeze(values: Sequence[int], width: int) -> list[int]:
    """``values`` summed into at most ``width`` buckets, so that an hour of minutes fits a narrow column."""
    if width <= 0 or not values:
        return []
    if len(values) <= width:
        return list(values)
    return [sum(values[len(values) * i // width : len(values) * (i + 1) // width]) for i in range(width)]


STEP_S = 30.0
"""Seconds of one bar of a line over time: 30 bars are the quarter of an hour that is kept, and a quiet mesh redraws
its bars twice a minute at most."""


def by_time(points: Sequence[tuple[float, float | None]], width: int) -> list[float | None]:
    """The last value of each of the last ``width`` steps of time, oldest first; empty while nothing ever changed, for
    a flat line says nothing. ``points`` are (Unix seconds, value), oldest first."""
    if len({value for _, value in points if value is not None}) < 2:
        return []
    steps: dict[int, float | None] = {int(at // STEP_S): value for at, value in points}
    last = max(steps)
    first = max(min(steps), last - width + 1)
    found: list[float | None] = []
    for step in range(first, last + 1):
        found.append(steps.get(step, found[-1] if found else None))
    return found
