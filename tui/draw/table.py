"""Tables as values: columns, rows, which columns fit, and in which order rows stand. Knows no widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tui.draw.spans import Line, plain


@dataclass(frozen=True, slots=True)
class Column:
    """``width`` in cells without the gap. ``drop`` 0 never goes; else the highest goes first where room is scarce.
    One column with ``grow`` takes what the others leave (``width`` is its least)."""

    key: str
    label: str
    width: int
    right: bool = False
    grow: bool = False
    drop: int = 0
    count: int = 0
    """Its header counts so many layers over its width; 0: the label."""


@dataclass(frozen=True, slots=True)
class Row:
    """``key`` is the row's identity through every update; ``sort`` a value per sort name (None sorts last)."""

    key: str
    cells: Mapping[str, Line]
    sort: Mapping[str, float | str | None] = field(default_factory=dict)
    words: str = ""
    """More text that a filter finds."""
    gone: bool = False
    """Held in place although the mesh no longer has it."""


@dataclass(frozen=True, slots=True)
class Sort:
    """One way to order a table: ``name`` is a key of Row.sort."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Arranged:
    rows: tuple[Row, ...]
    total: int
    """Rows before the filter."""
    waiting: int = 0
    """New rows that are counted, not shown, while the order is held."""


def pick_columns(columns: Sequence[Column], width: int, gap: int = 1) -> tuple[tuple[Column, ...], int]:
    """The columns that fit into ``width`` cells, with their final widths, and how many were left out."""
    kept = list(columns)
    while len(kept) > 1 and sum(c.width for c in kept) + gap * (len(kept) - 1) > width:
        droppable = [c for c in kept if c.drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda c: c.drop))
    spare = width - sum(c.width for c in kept) - gap * (len(kept) - 1)
    sized = [replace(c, width=max(1, c.width + spare)) if c.grow else c for c in kept]
    return tuple(sized), len(columns) - len(kept)


def order_rows(rows: Sequence[Row], sort: Sort) -> list[Row]:
    """Sorted by ``sort``; rows without a value stand last either way; ties keep the given order."""
    known = [row for row in rows if row.sort.get(sort.name) is not None]
    unknown = [row for row in rows if row.sort.get(sort.name) is None]
    known.sort(key=lambda row: _rank(row.sort[sort.name]), reverse=sort.descending)
    return known + unknown


def _rank(value: float | str | None) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value).casefold())


def matches(row: Row, query: str) -> bool:
    """Every word of ``query`` is somewhere in the row; ``!word`` must be nowhere. Case does not count."""
    text = " ".join([*(plain(cell) for cell in row.cells.values()), row.words]).casefold()
    for word in query.casefold().split():
        wanted = not word.startswith("!")
        needle = word if wanted else word[1:]
        if needle and (needle in text) != wanted:
            return False
    return True


def arrange(rows: Sequence[Row], sort: Sort, query: str, before: Sequence[Row], hold: bool) -> Arranged:
    """What a table shows now. While held, rows keep the places they had in ``before``: values change, those that went
    stay as ``gone``, new ones are only counted."""
    wanted = [row for row in rows if matches(row, query)]
    if not hold:
        return Arranged(tuple(order_rows(wanted, sort)), len(rows))
    now = {row.key: row for row in wanted}
    every = {row.key for row in rows}
    kept = []
    for old in before:
        if old.key in now:
            kept.append(now.pop(old.key))
        elif old.key not in every:
            kept.append(replace(old, gone=True))
    return Arranged(tuple(kept), len(rows), waiting=len(now))
