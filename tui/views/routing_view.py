"""The overview: learned routes and why; below them, where there is room, the last calls and the layers' map."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding

from tui.draw import calls, layers, numbers
from tui.draw.routing import ROUTING
from tui.draw.spans import Line, cut, fit, line, ruler, span
from tui.model import Shown, label_of
from tui.views.table_view import FIRST_KEYS, LAST_KEYS, TableView
from tui.widgets.lines import Lines

RECENT = 6
"""Calls listed in a tall terminal."""


class RoutingView(TableView):
    """Routing (learned), with the strip of calls under it."""

    BINDINGS = [
        Binding("c", "app.chat_on_route", "Chat on this route", id="routing.chat"),
        Binding("b", "app.race_route", "Race this route", id="routing.race"),
    ]

    def __init__(self) -> None:
        super().__init__(ROUTING)

    @property
    def key_words(self) -> list[tuple[str, str]]:
        return [*FIRST_KEYS, ("c", "chat"), ("b", "race"), *LAST_KEYS]

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield Lines(classes="strip")
        yield Lines(classes="recent")
        yield Lines(classes="map")

    def redraw(self) -> None:
        super().redraw()
        if self.shown is None or not self.is_mounted:
            return
        width = self.size.width
        for name, content in (("strip", self._strip), ("recent", self._recent), ("map", self._map)):
            block = self.query_one(f".{name}", Lines)
            if block.display:
                block.put(content(self.shown, width))

    def _strip(self, shown: Shown, width: int) -> list[Line]:
        words = "E exploit  S scout  P pinned  G greedy  x failed"
        return [ruler("calls", width, words), fit(calls.strip(shown, width), width, right=True)]

    def _recent(self, shown: Shown, width: int) -> list[Line]:
        said = [ruler("calls", width)]
        for row in shown.snapshot.calls[:RECENT]:
            mode = "greedy" if row.mode == "greedy-fallback" else row.mode or "-"
            tail = span(row.error_message, "bad") if row.error_message else ("", "")
            parts = line(
                (f" {numbers.clock(row.accepted_at)} ", "dim"),
                (f"{mode:<8}", calls.MODE_TONE.get(row.mode or "", "")),
                *fit(((label_of(shown, row.signature), ""),), 34),
                f"{row.prompt_tokens:>7}>{row.completion_tokens:<5}",
                f"{numbers.duration(row.ttft_s):>7}{numbers.tps(row.tps):>7} tok/s  ",
                calls.ending(row),
                "  ",
                tail,
            )
            said.append(cut(parts, width))
        said += [()] * (RECENT + 1 - len(said))
        said.append(cut((("  ", ""), *calls.strip(shown, width - 4)), width))
        said.append(cut((("  ", ""), *calls.count_line(shown)), width))
        return said

    def _map(self, shown: Shown, width: int) -> list[Line]:
        return layers.small_map(shown, width, max(3, self.query_one(".map").size.height))
