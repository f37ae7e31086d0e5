"""A table that lives: rows come, go, change and are re-sorted while the cursor stays on the same row's key.

It keeps its own scroll position in whole rows and repaints only the cells that changed, because over SSH every repaint
is bytes. Textual's DataTable repaints the whole table for one cell and keeps the cursor on an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.strip import Strip

from tui.draw.scale import scale
from tui.draw.spans import BLANK, Line, Span, fit
from tui.draw.table import Column, Row, Sort, pick_columns
from tui.widgets.toned import Toned

MARK = 1
"""Cells left of each row: the cursor's sign, so that the cursor is seen without colour."""


class LiveTable(Toned, can_focus=True):
    """Rows by key. Cursor and top row survive every ``put``."""

    BINDINGS = [
        Binding("up,k", "move(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page_down"),
        Binding("home,g", "move(-1000000)", "First", show=False, id="table.first"),
        Binding("end,G", "move(1000000)", "Last", show=False, id="table.last"),
        Binding("enter", "open", "Open", show=False, id="table.open"),
    ]

    @dataclass
    class Highlighted(Message):
        """The cursor is on another row now."""

        table: LiveTable
        key: str | None

    @dataclass
    class Opened(Message):
        """Enter, or a click on the row under the cursor."""

        table: LiveTable
        key: str

    @dataclass
    class Moved(Message):
        """The operator moved the cursor (not the mesh)."""

        table: LiveTable

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.rows: tuple[Row, ...] = ()
        self.sort: Sort | None = None
        self.cursor_key: str | None = None
        self.top = 0
        self.empty: Line = BLANK
        """What an empty table says."""

    # ---- what the view calls

    def put(self, rows: Sequence[Row], sort: Sort | None = None, follow: bool = False, empty: Line = BLANK) -> None:
        """Show ``rows`` in this order. ``follow`` puts the cursor on the first row."""
        before, cursor_before = self.rows, self.cursor_row
        line_before = (cursor_before or 0) - self.top
        header_changed, self.sort = sort != self.sort, sort
        empty_changed, self.empty = empty != self.empty, empty
        self.rows = tuple(rows)
        key_before = self.cursor_key
        self._place_cursor(follow, cursor_before, line_before)
        if key_before != self.cursor_key:
            self.post_message(self.Highlighted(self, self.cursor_key))
        self._repaint(before, cursor_before, self.top_before, header_changed, empty_changed)

    def put_columns(self, columns: Sequence[Column]) -> None:
        if tuple(columns) != self.columns:
            self.columns = tuple(columns)
            self.refresh()

    @property
    def cursor_row(self) -> int | None:
        """Index of the cursor's row; None where its key is not shown."""
        return next((i for i, row in enumerate(self.rows) if row.key == self.cursor_key), None)

    @property
    def dropped_columns(self) -> int:
        return pick_columns(self.columns, self._cells_width)[1]

    def grow_width(self) -> int:
        """Cells of the column that takes what the others leave; 0 without one."""
        picked, _ = pick_columns(self.columns, self._cells_width)
        return next((column.width for column in picked if column.grow), 0)

    def go_to(self, key: str) -> bool:
        """Put the cursor on ``key``; False where no such row is shown."""
        if all(row.key != key for row in self.rows):
            return False
        self._set_cursor(key)
        return True

    # ---- cursor and scrolling

    @property
    def _height(self) -> int:
        return max(1, self.size.height - 1)

    @property
    def _cells_width(self) -> int:
        return max(1, self.size.width - MARK - 1)

    def _place_cursor(self, follow: bool, row_before: int | None, line_before: int) -> None:
        self.top_before = self.top
        if not self.rows:
            self.cursor_key, self.top = None, 0
            return
        if follow or self.cursor_key is None:
            self.cursor_key, self.top = self.rows[0].key, 0
            return
        row = self.cursor_row
        if row is None:
            row = min(row_before or 0, len(self.rows) - 1)
            self.cursor_key = self.rows[row].key
        if self.top_before or row - line_before > 0:
            self.top = row - line_before
        self._clamp(row)

    def _clamp(self, row: int) -> None:
        self.top = max(0, min(self.top, max(0, len(self.rows) - self._height)))
        if row < self.top:
            self.top = row
        elif row >= self.top + self._height:
            self.top = row - self._height + 1

    def _set_cursor(self, key: str) -> None:
        if key == self.cursor_key:
            return
        old, top = self.cursor_row, self.top
        self.cursor_key = key
        new = self.cursor_row or 0
        self._clamp(new)
        if top != self.top:
            self.refresh()
        else:
            for row in (old, new):
                if row is not None and 0 <= row - self.top < self._height:
                    self.repaint_line(row - self.top + 1)
        self.post_message(self.Highlighted(self, key))

    def action_move(self, count: int) -> None:
        if self.rows:
            row = max(0, min((self.cursor_row or 0) + count, len(self.rows) - 1))
            self._set_cursor(self.rows[row].key)
            self.post_message(self.Moved(self))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * self._height)

    def action_open(self) -> None:
        if self.cursor_key is not None:
            self.post_message(self.Opened(self, self.cursor_key))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_move(-3)

    def on_click(self, event: Click) -> None:
        row = self.top + event.y - 1
        if event.y < 1 or row >= len(self.rows):
            return
        key = self.rows[row].key
        if key == self.cursor_key:
            self.post_message(self.Opened(self, key))
        else:
            self._set_cursor(key)
            self.post_message(self.Moved(self))

    def on_resize(self, event: Resize) -> None:
        if self.cursor_row is not None:
            self._clamp(self.cursor_row)

    # ---- drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        picked, _ = pick_columns(self.columns, self._cells_width)
        if y == 0:
            return self.strip_of(self._header(picked), width)
        index = self.top + y - 1
        if index >= len(self.rows):
            return self.strip_of((("  ", ""), *self.empty) if not self.rows and y == 2 else (), width)
        row = self.rows[index]
        is_cursor = row.key == self.cursor_key
        over = self.style_of("cursor") if is_cursor else self.style_of("gone") if row.gone else None
        body = self.strip_of(self._row_line(row, picked, is_cursor), width - 1, over)
        return Strip.join([body, self.strip_of((self._scroll_mark(y),), 1)])

    def _header(self, picked: Sequence[Column]) -> Line:
        parts: list[Span] = [(" " * MARK, "")]
        for column in picked:
            sorted_by = self.sort is not None and self.sort.name == column.key
            if column.count:
                parts += [*fit(scale(column.count, column.width), column.width), (" ", "")]
                continue
            label = column.label + (("▾" if self.sort and self.sort.descending else "▴") if sorted_by else "")
            parts += fit(((label, "title"),), column.width, column.right)
            parts.append((" ", ""))
        return tuple(parts)

    def _row_line(self, row: Row, picked: Sequence[Column], is_cursor: bool) -> Line:
        mark: Span = (">" if is_cursor else "-" if row.gone else " ", "strong")
        parts: list[Span] = [mark]
        for column in picked:
            parts += fit(row.cells.get(column.key, BLANK), column.width, column.right)
            parts.append((" ", ""))
        return tuple(parts[:-1])

    def _scroll_mark(self, y: int) -> Span:
        """One cell of the scroll bar; blank where everything fits."""
        count, height = len(self.rows), self._height
        if count <= height:
            return " ", ""
        size = max(1, height * height // count)
        start = self.top * (height - size) // max(1, count - height)
        return ("┃", "strong") if start <= y - 1 < start + size else ("│", "dim")

    # ---- repainting only what changed

    def _repaint(
        self, before: Sequence[Row], cursor_before: int | None, top_before: int, header: bool, empty: bool
    ) -> None:
        if header:
            self.repaint_line(0)
        if len(before) != len(self.rows) and max(len(before), len(self.rows)) > self._height:
            self.refresh()
            return
        if empty:
            self.repaint_line(2)
        cursor = self.cursor_row
        for y in range(self._height):
            i, j = top_before + y, self.top + y
            old = before[i] if i < len(before) else None
            new = self.rows[j] if j < len(self.rows) else None
            if old is None and new is None:
                continue
            if (
                old is None
                or new is None
                or old.key != new.key
                or (cursor_before == i) != (cursor == j)
                or old.gone != new.gone
            ):
                self.repaint_line(y + 1)
            elif old.cells != new.cells:
                self._repaint_cells(y + 1, old, new)

    def _repaint_cells(self, y: int, old: Row, new: Row) -> None:
        """One region from the first changed cell to the last: each region costs its own cursor move and colours."""
        picked, _ = pick_columns(self.columns, self._cells_width)
        x, first, end = MARK, -1, 0
        for column in picked:
            if old.cells.get(column.key) != new.cells.get(column.key):
                first = x if first < 0 else first
                end = x + column.width
            x += column.width + 1
        if first >= 0:
            self.repaint_line(y, first, end - first)
