"""The console's app: one poll loop, one event loop, the ring of snapshots; views get moments, nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from textual import on
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.command import CommandPalette
from textual.events import Event, Key
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen

from meshnet.domain.errors import MeshnetError, NotFound
from meshnet.wire.routing import EventMessage
from tui import export, keys
from tui.clipboard import osc52
from tui.draw.spans import visible
from tui.history import History
from tui.model import Shown, candidate, look
from tui.poller import EVENT_POLL_S, Poller
from tui.screens.details import DetailsScreen
from tui.screens.help import HelpScreen
from tui.screens.main import MainScreen
from tui.screens.menu import Choice, MenuScreen
from tui.screens.palette import Palette
from tui.settings import Settings
from tui.source import MeshSource
from tui.theme import CYCLE, MESHNET
from tui.views.table_view import TableView
from tui.widgets.ascii_filter import AsciiFilter
from tui.widgets.entry import Entry

EVENTS_KEPT = 2_000
"""Newest events in memory: about a megabyte."""
EVENTS_RETRY_S = 5.0
"""Between tries to hear events again; the poll goes on meanwhile."""
REDRAW_AFTER_EVENT_S = 0.25
"""Events come in bursts: the screen follows four times a second at most."""
MESSAGE_S = 6.0
"""How long what we say stays on the line of problems."""
HINT_S = 3.0
"""A word about keys is read at once; the line of keys goes on saying it."""


class ConsoleApp(App[None]):
    """``clock`` is monotonic seconds, ``wall`` Unix seconds; ``rng`` draws the seeds of chats."""

    CSS_PATH = "console.tcss"
    TITLE = "meshnet"
    ENABLE_COMMAND_PALETTE = True
    AUTO_FOCUS = ""
    BINDINGS = [Binding("ctrl+q", "leave", "Quit", show=False, priority=True, id="everywhere.quit_now")]

    def __init__(
        self,
        source: MeshSource,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        self.settings = settings
        self._ascii = AsciiFilter()
        self._no_color = NoColor()
        super().__init__()
        self.source = source
        self.clock = clock
        self.wall = wall
        self.rng = rng or Random()
        self.poller = Poller(source, clock)
        self.history = History()
        self.events_heard: deque[EventMessage] = deque(maxlen=EVENTS_KEPT)
        self.events_served = True
        self.prompts = False
        self.message = ""
        self.key_hint = ""
        self.problem_at = 0
        self.shown: Shown | None = None
        self._message_until = 0.0
        self._hint_until = 0.0
        self._wake = asyncio.Event()
        self._redraw_pending = False
        self._leave_asked = False
        self._next_problem = 0
        self._mouse_on = settings.mouse
        self.animation_level = "none"

    # ---- start and end

    def on_mount(self) -> None:
        self.register_theme(MESHNET)
        if self.settings.theme in self.available_themes:
            self.theme = self.settings.theme
        if self.settings.keys:
            self.set_keymap(self.settings.keys)
        self.push_screen(MainScreen())
        self.run_worker(self._poll_loop(), group="poll", exit_on_error=False)
        self.run_worker(self._event_loop(), group="events", exit_on_error=False)
        self.set_interval(1.0, self._every_second)

    def _fatal_error(self) -> None:
        """Textual prints every frame's local variables when it crashes: prompts and keys. We print none."""
        from rich.segment import Segments
        from rich.traceback import Traceback

        traceback = Traceback(show_locals=False, width=None)
        self._exit_renderables.append(Segments(self.console.render(traceback, self.console.options)))
        self._close_messages_no_wait()

    def get_line_filters(self) -> list[LineFilter]:
        filters = [each for each in super().get_line_filters() if not isinstance(each, Monochrome)]
        if self.no_color:
            # Textual chose greys before it knew our theme; no colour means none.
            filters.append(self._no_color)
        return [*filters, self._ascii] if self.settings.ascii else filters

    async def on_unmount(self) -> None:
        await self.source.close()

    @property
    def main(self) -> MainScreen | None:
        """The main screen; None before it is up."""
        return next((screen for screen in self.screen_stack if isinstance(screen, MainScreen)), None)

    # ---- keys

    async def on_event(self, event: Event) -> None:
        """A key is done with before the next is looked at: of keys typed in one instant (pasted, sent by a script) each
        goes where the one before it led."""
        if not isinstance(event, Key) or event.is_forwarded:
            await super().on_event(event)
            return
        self.drop_hint()
        focused = self.focused
        if isinstance(focused, Entry) and event.character is not None and event.is_printable:
            focused.write(event.character)
        elif isinstance(self.screen, CommandPalette):
            await self._palette_key(event)
        elif not await self._check_bindings(event.key, priority=True):
            await self._check_bindings(event.key)

    async def _palette_key(self, event: Key) -> None:
        """The palette's entry is Textual's own; until it is up, keys wait."""
        if self.focused is None:
            self.screen.call_after_refresh(self.post_message, Key(event.key, event.character))
        else:
            await super().on_event(event)

    # ---- the two loops

    async def _poll_loop(self) -> None:
        while True:
            began = self.clock()
            snapshot = await self.poller.tick()
            if snapshot is not None:
                self.history.add(self.clock(), snapshot)
            self.redraw()
            await self._wait(began)

    async def _wait(self, began: float) -> None:
        """Until the next poll is due, or until an event or the operator asks for one, but never at once."""
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), self.poller.wait_s)
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, EVENT_POLL_S - (self.clock() - began)))

    async def _event_loop(self) -> None:
        while True:
            after = self.events_heard[0].id if self.events_heard else 0
            try:
                async for event in self.source.events(after):
                    self._heard(event)
            except NotFound:
                self.events_served = False
            except MeshnetError:
                pass  # The poll says that the tracker is silent; both saying it would be noise.
            await asyncio.sleep(EVENTS_RETRY_S)

    def _heard(self, event: EventMessage) -> None:
        self.events_served = True
        self.events_heard.appendleft(event)
        self._wake.set()
        if not self._redraw_pending:
            self._redraw_pending = True
            self.set_timer(REDRAW_AFTER_EVENT_S, self._redraw_for_events)

    def _redraw_for_events(self) -> None:
        self._redraw_pending = False
        self.redraw()

    def _every_second(self) -> None:
        if self.message and self.clock() > self._message_until:
            self.message = ""
        if self.clock() >= self._hint_until:
            self.key_hint = ""
        if self.main is not None and self.screen is self.main:
            self.main.draw_frame(self.shown)

    # ---- drawing

    def redraw(self) -> None:
        """Draw the moment that is looked at."""
        at = self.history.shown
        self.shown = None
        if at is not None:
            events = tuple(event for event in self.events_heard if self.history.is_live or event.at <= at[1].taken_at)
            self.shown = look(at[1], self.history.until_shown(), events, self.prompts, self.events_served)
        if self.main is not None and self.main.is_mounted:
            self.main.show(self.shown)
        if isinstance(self.screen, DetailsScreen) and self.shown is not None:
            self.screen.show(self.shown)

    def shown_age_s(self) -> float | None:
        """How far back we look; None when live."""
        at = self.history.shown
        return None if self.history.is_live or at is None else self.clock() - at[0]

    def say(self, text: str) -> None:
        """A sentence on the line of problems, for a few seconds."""
        self.message = visible(text)
        self._message_until = self.clock() + MESSAGE_S
        if self.main is not None:
            self.main.draw_frame(self.shown)

    def hint(self, text: str) -> None:
        """A word about what keys do now: until the next key, view or HINT_S, and never in a problem's place."""
        self.key_hint = visible(text)
        self._hint_until = self.clock() + HINT_S
        if self.main is not None:
            self.main.draw_frame(self.shown)

    def drop_hint(self) -> None:
        """What it said is no longer so."""
        if self.key_hint:
            self.key_hint = ""
            if self.main is not None:
                self.main.draw_frame(self.shown)

    # ---- actions

    def action_view(self, name: str) -> None:
        if self.main is not None:
            self.main.switch(name)

    def action_next_problem(self) -> None:
        problems = self.shown.problems if self.shown else ()
        if not problems or self.main is None:
            self.say("no problem stands")
            return
        self.problem_at = self._next_problem % len(problems)
        self._next_problem = self.problem_at + 1
        problem = problems[self.problem_at]
        self.main.switch(problem.view)
        view = self.main.active
        if isinstance(view, TableView) and self.shown is not None:
            view.show(self.shown)
            view.go_to(problem.row)
        self.main.draw_frame(self.shown)

    def action_step(self, count: int) -> None:
        self.history.step(count)
        self.redraw()

    def action_live(self) -> None:
        self.history.live()
        self.redraw()

    def action_refresh_now(self) -> None:
        self._wake.set()

    def action_prompts(self) -> None:
        self.prompts = not self.prompts
        self.redraw()

    def action_next_theme(self) -> None:
        names = [name for name in CYCLE if name in self.available_themes]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]
        self.say(f"theme {self.theme}")

    def action_mouse(self) -> None:
        driver = self._driver
        switch = getattr(driver, "_disable_mouse_support" if self._mouse_on else "_enable_mouse_support", None)
        if switch is None:
            self.say("this terminal has no mouse")
            return
        switch()
        self._mouse_on = not self._mouse_on
        self.say("mouse on" if self._mouse_on else "mouse off: the terminal selects text again")

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette(id="--command-palette"))

    def action_help(self) -> None:
        if self.main is None:
            return
        view = self.main.active
        own, everywhere = keys.working(self.main, [view, view.table] if isinstance(view, TableView) else [view])
        self.push_screen(HelpScreen([("This view", own), ("Everywhere", everywhere)]))

    def action_leave(self) -> None:
        busy = self.main is not None and self.main.query_one("ChatView").has_class("-streaming")
        if busy and not self._leave_asked:
            self._leave_asked = True
            self.say("an answer is streaming: q again stops it and quits")
            return
        self.exit()

    def leave_by_signal(self, number: int) -> None:
        """SIGTERM, SIGHUP: restore the terminal, then end with the code that shells expect."""
        self.exit(return_code=128 + number)

    def action_export(self) -> None:
        if self.settings.read_only:
            self.say("read-only: nothing is written; y copies instead")
            return
        if self.main is None or self.shown is None:
            return
        view = self.main.active
        name, text = (
            ("md", view.as_markdown()) if not isinstance(view, TableView) else ("json", export.as_json(self.shown))
        )
        self._write(f"meshnet-{view.id}-{time.strftime('%Y%m%d-%H%M%S')}.{name}", text)

    def action_export_history(self) -> None:
        if self.settings.read_only:
            self.say("read-only: nothing is written")
            return
        text = export.as_json_lines(self.history.everything())
        self._write(f"meshnet-history-{time.strftime('%Y%m%d-%H%M%S')}.jsonl", text)

    def _write(self, name: str, text: str) -> None:
        """Says the name first: of a line that is cut, the folder is what can be spared."""
        folder = Path.cwd()
        try:
            (folder / name).write_text(text, "utf-8")
        except OSError as error:
            self.say(f"cannot write {name}: {error.strerror}, in {folder}")
            return
        self.say(f"wrote {name} in {folder}")

    def copy_text(self, text: str, what: str) -> None:
        """To the operator's clipboard through the terminal."""
        sequence = osc52(text, os.environ)
        if sequence is None or self._driver is None:
            self.say(f"{what} is too long for the terminal's clipboard: e exports it")
            return
        self._driver.write(sequence)
        self.say(f"copied {what}: {text}")

    @on(TableView.Copy)
    def _copy(self, event: TableView.Copy) -> None:
        if self.shown is None:
            return
        texts = self.shown and event.spec.copies(self.shown, event.key)
        if not texts:
            self.say("nothing to copy of this row")
            return
        choices = [Choice(name, f"as {name}", text) for name, text in texts.items()]

        def taken(name: str | None) -> None:
            if name is not None:
                self.copy_text(texts[name], name)

        self.push_screen(MenuScreen("COPY", choices), taken)

    @on(TableView.Open)
    def _open(self, event: TableView.Open) -> None:
        if self.shown is None:
            return
        problem = next((p for p in self.shown.problems if event.key == f"problem:{p.key}"), None)
        if problem is not None and self.main is not None:
            self.main.switch(problem.view)
            view = self.main.active
            if isinstance(view, TableView):
                view.show(self.shown)
                view.go_to(problem.row)
            return
        self.push_screen(DetailsScreen(event.spec, event.key, self.shown))

    def action_chat_on_route(self) -> None:
        self._to_chat(race=False)

    def action_race_route(self) -> None:
        self._to_chat(race=True)

    def _to_chat(self, race: bool) -> None:
        if self.main is None or self.shown is None:
            return
        view = self.main.active
        key = view.table.cursor_key if isinstance(view, TableView) else None
        found = candidate(self.shown.snapshot, key) if key else None
        if found is None:
            self.say("no route under the cursor")
            return
        self.main.switch("chat")
        self.main.query_one("ChatView").take_route(self.shown, found, race)  # type: ignore[attr-defined]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        yield SystemCommand("Export 15 minutes", "Write every kept snapshot as JSON lines", self.action_export_history)
        if self.main is None:
            return
        for node, binding, key in keys.commands(self.main, self.main.active):
            yield SystemCommand(
                binding.description,
                key,
                lambda action=binding.action, at=node: self.call_later(self.run_action, action, at),
            )
