"""What one table view is: its columns, rows, details and what can be copied from a row. A closed list of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui.draw.spans import Line
from tui.draw.table import Column, Row, Sort
from tui.model import Shown


@dataclass(frozen=True, slots=True)
class TableSpec:
    """``rows`` gets the width of the growing column; ``pane`` the pane's width; ``details`` fill the screen on enter.
    ``copies`` gives name -> text to paste."""

    name: str
    """``routing``; also the view's id."""
    title: str
    columns: Callable[[Shown], tuple[Column, ...]]
    rows: Callable[[Shown, int], list[Row]]
    pane: Callable[[Shown, str | None, int], list[Line]]
    details: Callable[[Shown, str, int], list[Line]]
    copies: Callable[[Shown, str], dict[str, str]]
    head: Callable[[Shown, int], list[Line]]
    """Lines over the table, at most two."""
    summary: Callable[[Shown], Line]
    empty: Callable[[Shown], Line]
    sorts: Sequence[Sort]
    """The first is the one at start."""
    follows: bool = False
    """New rows come at the top and the cursor may follow them."""
    pane_share: int = 10
    """Lines of the pane below the table in a narrow terminal of 24 lines."""
    side_pane: bool = False
    """In a wide terminal the pane stands beside the table."""
