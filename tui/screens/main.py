"""The one screen that stays: header, tabs, the seven views, the line of problems and the line of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Click
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Input

from tui.draw import frame, numbers
from tui.draw.calls import CALLS
from tui.draw.events import EVENTS
from tui.draw.layers import LAYERS
from tui.draw.models import MODELS
from tui.draw.nodes import NODES
from tui.draw.spans import Line
from tui.model import Shown
from tui.screens.help import key_name
from tui.views.chat_view import ChatView
from tui.views.routing_view import RoutingView
from tui.views.table_view import TableView
from tui.widgets.entry import Entry
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from tui.app import ConsoleApp


class MainScreen(Screen[None]):
    """Knows which view is active and passes it what it shows."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (14, "-low"), (22, "-normal"), (34, "-tall")]
    AUTO_FOCUS = ""

    BINDINGS = [
        *(
            Binding(str(i + 1), f"app.view('{name}')", title, show=False, id=f"everywhere.view_{name}")
            for i, (name, title) in enumerate(frame.VIEWS)
        ),
        Binding("slash", "filter", "Filter", key_display="/", id="everywhere.filter"),
        Binding("n", "app.next_problem", "Next problem", id="everywhere.next_problem"),
        Binding("left_square_bracket", "app.step(-1)", "Step back in time", key_display="[", id="everywhere.back"),
        Binding("right_square_bracket", "app.step(1)", "Step forward", key_display="]", id="everywhere.forward"),
        Binding("t", "app.live", "Back to live", id="everywhere.live"),
        Binding("r", "app.refresh_now", "Ask the tracker now", id="everywhere.refresh"),
        Binding("e", "app.export", "Export", id="everywhere.export"),
        Binding("P", "app.prompts", "Show or hide prompts", id="everywhere.prompts"),
        Binding("M", "app.mouse", "Mouse on or off", id="everywhere.mouse"),
        Binding("T", "app.next_theme", "Next theme", id="everywhere.theme"),
        Binding("colon", "app.command_palette", "Command palette", key_display=":", id="everywhere.palette"),
        Binding("question_mark", "app.help", "Help", key_display="?", id="everywhere.help"),
        Binding("escape", "back", "Clear the filter", id="everywhere.clear"),
        Binding("q", "app.leave", "Quit", id="everywhere.quit"),
    ]

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Lines(id="header")
            yield Lines(id="clock")
        yield Lines(id="tabs")
        with ContentSwitcher(initial="routing", id="views"):
            yield RoutingView()
            for spec in (CALLS, NODES, LAYERS, MODELS):
                yield TableView(spec)
            yield ChatView()
            yield TableView(EVENTS)
        yield Entry(self._filter_entered, id="filter", placeholder="words; !word excludes")
        yield Lines(id="problem")
        yield Lines(id="keys")

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.active.table.focus() if isinstance(self.active, TableView) else None
        self.call_after_refresh(self.console.redraw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.console.redraw)

    def on_descendant_focus(self) -> None:
        self.draw_frame(self.console.shown)  # Other keys work now.

    @property
    def console(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    @property
    def active_name(self) -> str:
        return self.query_one(ContentSwitcher).current or "routing"

    @property
    def active(self) -> TableView | ChatView:
        return cast("TableView | ChatView", self.query_one(f"#{self.active_name}"))

    # ---- data down

    def show(self, shown: Shown | None) -> None:
        """Draw everything that is seen now; hidden views are drawn when they come up."""
        if not self.query("#keys"):
            return
        self.draw_frame(shown)
        if shown is not None:
            self.active.show(shown)

    def draw_frame(self, shown: Shown | None) -> None:
        """Header, clock, tabs, problems and keys: what may change every second."""
        if not self.query("#keys"):
            return  # Not composed yet, or being taken down.
        app = self.console
        now = app.clock()
        problems = shown.problems if shown else ()
        header = self.query_one("#header", Lines)
        ago = app.shown_age_s()
        header.put(
            [frame.header(shown, app.poller.link, app.source.url, now, header.size.width, app.settings.read_only, ago)]
        )
        self.query_one("#clock", Lines).put([((" " + numbers.clock(app.wall()), "dim"),)])
        self.query_one("#tabs", Lines).put([frame.tabs(self.active_name, self.size.width, problems)])
        message = app.message or self._no_answer(shown) or ("" if problems else app.key_hint)
        self.query_one("#problem", Lines).put([frame.problem_line(problems, app.problem_at, message, self.size.width)])
        self.query_one("#keys", Lines).put([self._keys()])
        self.set_class(app.poller.link.is_frozen(now) and app.poller.link.last_good_at is not None, "-frozen")

    def _no_answer(self, shown: Shown | None) -> str:
        link = self.console.poller.link
        return link.error if link.failures and (shown is None or self.active_name != "chat") else ""

    def _keys(self) -> Line:
        """What the keys do now; while one types they are text, and only those with ctrl do more."""
        if isinstance(self.focused, Entry):
            at_filter = self.focused.id == "filter"
            pairs = [("enter", "keep"), ("esc", "clear")] if at_filter else [*self.active.key_words]
            return frame.key_line([*pairs, ("ctrl+p", "cmd"), ("ctrl+q", "quit")], self.size.width)
        pairs = [*self.active.key_words, (":", "cmd"), ("q", "quit"), (key_name("question_mark"), "help")]
        return frame.key_line(pairs, self.size.width)

    # ---- what the operator does

    def switch(self, name: str) -> None:
        """Bring a view up, with its own cursor and scroll as they were."""
        self.close_filter()
        self.console.drop_hint()
        self.query_one(ContentSwitcher).current = name
        self.active.take_focus()
        if self.console.shown is not None:
            self.active.show(self.console.shown)  # Its rows are there for the next key; the layout comes later.
        self.call_after_refresh(self.console.redraw)

    def action_filter(self) -> None:
        active = self.active
        if isinstance(active, TableView):
            entry = self.query_one("#filter", Input)
            entry.value = active.words
            entry.display = True
            self.set_focus(entry)

    def action_back(self) -> None:
        if self.query_one("#filter").display:
            self.close_filter(clear=True)
        elif isinstance(self.active, TableView) and self.active.words:
            self.active.set_filter("")
        else:
            self.console.say("")

    def close_filter(self, clear: bool = False) -> None:
        entry = self.query_one("#filter", Input)
        if not entry.display:
            return
        entry.display = False
        if isinstance(self.active, TableView):
            if clear:
                self.active.set_filter("")
            self.active.take_focus()

    @on(Input.Changed, "#filter")
    def _filtering(self, event: Input.Changed) -> None:
        if isinstance(self.active, TableView) and self.query_one("#filter").display:
            self.active.set_filter(event.value)

    def _filter_entered(self, text: str) -> None:
        if isinstance(self.active, TableView):
            self.active.set_filter(text)
        self.close_filter()

    @on(Click, "#tabs")
    def _tab_clicked(self, event: Click) -> None:
        shown = self.console.shown
        name = frame.tab_at(self.active_name, self.size.width, shown.problems if shown else (), event.x)
        if name:
            self.switch(name)
