"""A view made of one live table, the pane that explains its row, and two lines about the whole."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.message import Message

from tui.draw.spans import Line, Span, line
from tui.draw.spec import TableSpec
from tui.draw.table import Arranged, arrange
from tui.model import Shown
from tui.widgets.lines import Lines
from tui.widgets.live_table import LiveTable

LAZY_S = 3.0
"""After the operator moved the cursor rows keep their places this long: nobody aims at a moving row."""

FIRST_KEYS = [("enter", "open"), ("/", "filter"), ("s", "sort"), ("space", "hold")]
LAST_KEYS = [("y", "copy"), ("z", "zoom")]
"""Of every table; a view's own stand between them."""


class TableView(Vertical):
    """Owns what the operator did to one table: sort, filter, hold, follow, zoom. The mesh comes by ``show``."""

    BINDINGS = [
        Binding("s", "sort(1)", "Sort", id="table.sort"),
        Binding("S", "reverse", "Reverse the sort", id="table.reverse"),
        Binding("space", "hold", "Hold", id="table.hold"),
        Binding("f", "follow", "Follow new rows", id="table.follow"),
        Binding("z", "zoom", "Zoom", id="table.zoom"),
        Binding("y", "copy", "Copy as", id="table.copy"),
    ]

    @dataclass
    class Open(Message):
        """Show the details of this row."""

        spec: TableSpec
        key: str

    @dataclass
    class Copy(Message):
        """Offer what can be copied of this row."""

        spec: TableSpec
        key: str

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(id=spec.name, classes="-side" if spec.side_pane else "")
        self.spec = spec
        self.shown: Shown | None = None
        self.words = ""
        self.held = False
        self.following = spec.follows
        self._sort_at = 0
        self._reversed = False
        self._moved_at = float("-inf")
        self._arranged = Arranged((), 0)

    def compose(self) -> ComposeResult:
        with Container(classes="body"):
            with Vertical(classes="main"):
                yield Lines(classes="head")
                yield LiveTable(())
                yield Lines(classes="summary")
            yield Lines(classes="pane")

    @property
    def table(self) -> LiveTable:
        return self.query_one(LiveTable)

    @property
    def key_words(self) -> list[tuple[str, str]]:
        """What the bottom line says of this view, what matters most first."""
        own = [("f", "follow")] if self.spec.follows else []
        return [*FIRST_KEYS, *own, *LAST_KEYS]

    def take_focus(self) -> None:
        # At once, not when the queue gets there: what is typed next belongs to the new view.
        self.screen.set_focus(self.table)

    # ---- data down

    def show(self, shown: Shown) -> None:
        """Draw this moment."""
        self.shown = shown
        self.redraw()

    def redraw(self) -> None:
        shown = self.shown
        if shown is None or not self.is_mounted:
            return
        table, spec = self.table, self.spec
        table.put_columns(spec.columns(shown))
        sort = spec.sorts[self._sort_at]
        if self._reversed:
            sort = type(sort)(sort.name, not sort.descending)
        rows = spec.rows(shown, table.grow_width())
        hold = self.held or (monotonic() - self._moved_at < LAZY_S and not self.words)
        self._arranged = arrange(rows, sort, self.words, table.rows, hold and bool(table.rows))
        empty = line(("no row matches the filter", "warn")) if self.words and rows else spec.empty(shown)
        table.put(self._arranged.rows, sort, follow=self.following and not hold, empty=empty)
        self._draw_head(shown)
        self._draw_pane()
        self._draw_summary()

    def _draw_head(self, shown: Shown) -> None:
        """As wide as the table: a pane may stand beside it."""
        block = self.query_one(".head", Lines)
        head = self.spec.head(shown, self.query_one(".main").size.width or self.size.width)
        block.display = bool(head)
        if head and len(head) != len(block.lines):
            block.styles.height = len(head)
        block.put(head)

    def _draw_pane(self) -> None:
        pane = self.query_one(".pane", Lines)
        if self.shown is not None and pane.display and pane.size.width:  # Without a width nothing can be wrapped yet.
            pane.put(self.spec.pane(self.shown, self.table.cursor_key, pane.size.width))

    def _draw_summary(self) -> None:
        if self.shown is None:
            return
        self.query_one(".summary", Lines).put([self._summary(self.shown)])

    def _summary(self, shown: Shown) -> Line:
        sort = self.spec.sorts[self._sort_at]
        parts: list[Span] = [(" ", ""), *self.spec.summary(shown), ("  by " + sort.name, "dim")]
        return (*parts, *self._state())

    def _state(self) -> Line:
        found: list[Span] = []
        table = self.table
        if self.words:
            found.append((f"  /{self.words} {len(self._arranged.rows)} of {self._arranged.total}", "accent"))
        if self.held:
            found.append((f"  HELD, {self._arranged.waiting} new wait" if self._arranged.waiting else "  HELD", "warn"))
        if self.spec.follows:
            found.append(("  follow " + ("on" if self.following else "off"), "dim"))
        if table.dropped_columns:
            found.append((f"  -{table.dropped_columns} cols", "dim"))
        return tuple(found)

    # ---- what the operator does

    def set_filter(self, query: str) -> None:
        self.words = query
        self.redraw()

    def go_to(self, key: str) -> bool:
        """Put the cursor on a row; a filter that hides it is taken away."""
        if self.table.go_to(key):
            self.following = False
            return True
        if self.words:
            self.set_filter("")
            return self.table.go_to(key)
        return False

    def action_sort(self, count: int) -> None:
        self._sort_at = (self._sort_at + count) % len(self.spec.sorts)
        self._reversed = False
        self._release()

    def action_reverse(self) -> None:
        self._reversed = not self._reversed
        self._release()

    def _release(self) -> None:
        self._moved_at = float("-inf")
        self.redraw()

    def action_hold(self) -> None:
        self.held = not self.held
        self._release()

    def action_follow(self) -> None:
        self.following = not self.following and self.spec.follows
        self._release()

    def action_zoom(self) -> None:
        self.toggle_class("-zoomed")

    def action_copy(self) -> None:
        if self.table.cursor_key is not None:
            self.post_message(self.Copy(self.spec, self.table.cursor_key))

    @on(LiveTable.Highlighted)
    def _highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._draw_pane()

    @on(LiveTable.Moved)
    def _moved(self, event: LiveTable.Moved) -> None:
        event.stop()
        self._moved_at = monotonic()
        self.following = self.spec.follows and self.table.cursor_row == 0
        self._draw_summary()

    @on(LiveTable.Opened)
    def _opened(self, event: LiveTable.Opened) -> None:
        event.stop()
        self.post_message(self.Open(self.spec, event.key))

    def on_resize(self) -> None:
        beside = self.spec.side_pane and self.screen.has_class("-wide")
        self.query_one(".pane").styles.height = "1fr" if beside else self.spec.pane_share
        self.call_after_refresh(self.redraw)
