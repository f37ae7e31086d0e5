"""Chat: ask over a chosen route, see what each hop cost; race one prompt over two routes side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.worker import Worker, WorkerState

from meshnet.domain.errors import InvalidRequest
from meshnet.wire.routing import CandidateMessage
from tui.chat import AUTO, head_line, messages, race_verdict, to_markdown
from tui.chat_choices import choice_named, choices_of, pin
from tui.chat_settings import DRAWN_SEEDS, ChatSettings, Where, is_command, read_command
from tui.draw.spans import Line, cut
from tui.model import Shown, candidates
from tui.screens import menu
from tui.source import ChatAsk
from tui.widgets.entry import Entry
from tui.widgets.lane import Lane
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from tui.app import ConsoleApp


class ChatView(Vertical):
    """Owns the model, the routes and the running questions."""

    BINDINGS = [
        Binding("i", "write", "Write a question", id="chat.write"),
        Binding("escape", "stop", "Stop the answer, or leave the entry", id="chat.stop"),
        Binding("p", "pick('a')", "Pick a route", id="chat.pick"),
        Binding("b", "race", "Race two routes", id="chat.race"),
        Binding("r", "redo", "Ask the last question again", id="chat.redo"),
        Binding("m", "raw", "Markdown or raw", id="chat.raw"),
        Binding("s", "settings", "Set temperature, seed and length", id="chat.settings"),
        Binding("o", "next_model", "Next model", id="chat.model"),
        Binding("N", "new", "New conversation", id="chat.new"),
        Binding("y", "copy", "Copy the last answer", id="chat.copy"),
    ]

    def __init__(self) -> None:
        super().__init__(id="chat")
        self.shown: Shown | None = None
        self.model_key = ""
        self.racing = False
        self.settings = ChatSettings()
        # Held, not looked for: a search goes through every block of every answer.
        self._head_lines, self._verdict = Lines(id="chat-head"), Lines(id="verdict")
        self._a, self._b = Lane("a"), Lane("b")
        self._entry = Entry(self._entered, id="prompt", placeholder="ask the mesh")

    def compose(self) -> ComposeResult:
        yield self._head_lines
        yield Horizontal(self._a, self._b, id="lanes")
        yield self._verdict
        yield self._entry

    def on_mount(self) -> None:
        self._b.display = False
        self._verdict.display = False
        self.set_interval(0.5, self._while_streaming)

    @property
    def console(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    @property
    def key_words(self) -> list[tuple[str, str]]:
        if self.is_streaming:
            return [("esc", "stop")]
        if self.is_writing:
            return [("enter", "send"), ("esc", "keys"), (":", "settings")]
        return [
            ("i", "write"),
            ("p", "route"),
            ("b", "race"),
            ("r", "redo"),
            ("s", "set"),
            ("m", "md/raw"),
            ("o", "model"),
            ("y", "copy"),
            ("e", "export"),
        ]

    @property
    def lanes(self) -> list[Lane]:
        return [self._a, self._b] if self.racing else [self._a]

    @property
    def is_streaming(self) -> bool:
        return any(lane.is_streaming for lane in self.lanes)

    @property
    def is_writing(self) -> bool:
        """Keys are text: the entry has the focus (its own ``has_focus`` follows a message later)."""
        return self.screen.focused is self._entry

    def take_focus(self) -> None:
        self.screen.set_focus(self._entry)

    # ---- data down

    def show(self, shown: Shown) -> None:
        self.shown = shown
        if not self.model_key:
            ready = [model.id for model in shown.snapshot.models if model.ready]
            self.model_key = (ready or [model.id for model in shown.snapshot.models] or [""])[0]
        self._draw()

    def take_route(self, shown: Shown, row: CandidateMessage, race: bool) -> None:
        """Pin the first lane, or start a race against auto, from the routing table."""
        self.shown = shown
        choice = pin(shown, row)
        self.model_key = next(
            model.model_key for model, c in candidates(shown.snapshot) if c.signature == row.signature
        )
        first, second = self._a, self._b
        first.choice, second.choice = choice, AUTO
        self._set_racing(race)

    def _draw(self) -> None:
        self.set_class(self.is_streaming, "-streaming")
        width = max(1, self.size.width)
        self._head_lines.put([cut(self._head(), width)])
        for lane, name in ((self._a, "A"), (self._b, "B")):
            if lane.display:
                lane.show(self.shown, name if self.racing else "route")
        first, second = self._a, self._b
        if self.racing and first.turns and second.turns:
            self._verdict.put([cut(race_verdict(first.turns[-1], second.turns[-1]), width)])

    def _head(self) -> Line:
        turns = self._a.turns
        ready = self.shown and any(m.id == self.model_key and m.ready for m in self.shown.snapshot.models)
        return head_line(
            self.model_key, bool(ready), self.settings, turns[-1].seed if turns else None, self.is_streaming
        )

    def on_resize(self) -> None:
        """It comes up, or is as wide as it was not: only now its lines have a width."""
        self.call_after_refresh(self._draw)

    def _while_streaming(self) -> None:
        if self.is_streaming or self.has_class("-streaming"):
            self._draw()

    # ---- what the operator does

    def _entered(self, text: str) -> None:
        entry = self._entry
        if is_command(text):
            self._command(entry, text)
        elif text.strip():
            entry.value = ""
            self._ask(text.strip())

    def _command(self, entry: Entry, text: str) -> None:
        """A line with a colon: settings, or where to ask. One that is wrong stays, to be mended."""
        try:
            found = read_command(text, self.settings)
            if isinstance(found, Where):
                self._take_where(found)
            else:
                self.settings = found
        except InvalidRequest as error:
            self.console.say(error.message)
            return
        entry.value = ""
        self._draw()

    def _take_where(self, where: Where) -> None:
        """Raises InvalidRequest for a name that nothing has."""
        if self.is_streaming:
            raise InvalidRequest("an answer is still coming: esc stops it")
        if where.kind == "model":
            models = [model.id for model in self.shown.snapshot.models] if self.shown else []
            if where.name not in models:
                raise InvalidRequest(f"there is no model {where.name!r}: {', '.join(models) or 'none is served'}")
            self._take_model(where.name)
            return
        found = choice_named(self.shown, self.model_key, where)
        self._a.choice = found

    def _ask(self, prompt: str, seed: int | None = None) -> None:
        """``seed`` asks again with the dice of an earlier answer."""
        console = self.console
        if console.settings.read_only:
            console.say("read-only: this console only looks")
            return
        if self.is_streaming:
            console.say("an answer is still coming: esc stops it")
            return
        if not self.model_key:
            console.say("no model is served by this mesh yet")
            return
        if seed is None:
            drawn = console.rng.randrange(DRAWN_SEEDS)
            seed = drawn if self.settings.seed is None else self.settings.seed
        for lane in self.lanes:
            self.run_worker(lane.ask_auto(console.source, self.model_key), group="auto", exit_on_error=False)
            past = [] if self.racing else lane.turns
            ask = ChatAsk(
                model=self.model_key,
                messages=messages(past, prompt),
                route=lane.choice.route,
                policy=lane.choice.policy,
                seed=seed,
                temperature=self.settings.temperature,
                max_tokens=self.settings.max_tokens,
            )
            work = lane.ask(console.source, ask, prompt, console.clock)
            self.run_worker(work, group="chat", exit_on_error=False, name=lane.id or "")
        # While it streams the keys are free: 1-7 change the view, esc stops.
        self.screen.set_focus(self._a.scroll)
        self.call_after_refresh(self._draw)

    @on(Worker.StateChanged)
    def _ended(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "chat" and event.worker.is_finished:
            if event.state is WorkerState.ERROR:  # One that was stopped carries an error too.
                self.console.say(f"chat failed: {event.worker.error}")
            self._draw()
            self.console.action_refresh_now()
            if not self.is_streaming and self.screen.focused is self._a.scroll:
                self.take_focus()
                self.console.redraw()

    def action_write(self) -> None:
        self.take_focus()

    def action_stop(self) -> None:
        if self.is_streaming:
            self.workers.cancel_group(self, "chat")
            self.console.say("stopped")
        elif self.is_writing:
            self.screen.set_focus(self._a.scroll)
            self.console.hint("keys are free: i writes, 1-7 change the view")

    def action_redo(self) -> None:
        turns = self._a.turns
        if turns:
            self._ask(turns[-1].prompt, turns[-1].seed if self.settings.seed is None else None)

    def action_settings(self) -> None:
        """The settings as one line to edit."""
        entry = self._entry
        entry.value = self.settings.as_command()
        self.take_focus()

    async def action_raw(self) -> None:
        for lane in (self._a, self._b):
            await lane.set_raw(not lane.raw)

    async def action_new(self) -> None:
        if not self.is_streaming:
            for lane in (self._a, self._b):
                await lane.clear()
            self._draw()

    def action_next_model(self) -> None:
        models = [model.id for model in self.shown.snapshot.models] if self.shown else []
        if models and not self.is_streaming:
            at = models.index(self.model_key) + 1 if self.model_key in models else 0
            self._take_model(models[at % len(models)])

    def _take_model(self, model_key: str) -> None:
        """Another model has other routes: back to auto."""
        self.model_key = model_key
        for lane in (self._a, self._b):
            lane.choice = AUTO
        self._draw()

    def action_copy(self) -> None:
        turns = self._a.turns
        if turns:
            self.console.copy_text(turns[-1].answer, "answer")

    def action_race(self) -> None:
        if self.racing:
            self._set_racing(False)
            return
        self.action_pick("a", then_b=True)

    def action_pick(self, which: str, then_b: bool = False) -> None:
        if self.shown is None:
            return
        choices = choices_of(self.shown, self.model_key)
        title = {"a": "ROUTE A OF THE RACE" if then_b else "ROUTE", "b": "ROUTE B OF THE RACE"}[which]
        offered = [menu.Choice(key, f"{choice.label:<40} {text}", text) for key, (choice, text) in choices.items()]

        def taken(key: str | None) -> None:
            if key is None:
                return
            {"a": self._a, "b": self._b}[which].choice = choices[key][0]
            if then_b:
                self.action_pick("b")
            elif which == "b":
                self._set_racing(True)
            self._draw()
            self.take_focus()

        self.app.push_screen(menu.MenuScreen(title, offered), taken)

    def _set_racing(self, racing: bool) -> None:
        self.racing = racing
        self._b.display = racing
        self._verdict.display = racing
        self._draw()

    def as_markdown(self) -> str:
        """Both lanes' conversations, for export."""
        return "\n\n".join(to_markdown(lane.turns, self.model_key) for lane in self.lanes)
