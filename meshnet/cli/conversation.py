"""An interactive chat: line editing, history, commands; Ctrl-C stops the answer and not the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from meshnet.cli.connect import open_client, strangers_named
from meshnet.cli.hints import hint_of
from meshnet.cli.question import (
    Answer,
    Message,
    Wishes,
    ask,
    choose_model,
    names_of,
    reroutes,
    resolve_route,
    short_route,
    with_names,
)
from meshnet.cli.terminal import complain, console, dim, visible, visible_text
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import NOT_UTF8, MeshnetError

T = TypeVar("T")

PROMPT = "> "
LOST_TRACKER = ("unreachable", "connection_lost", "shutting_down")
OUR_OWN_FAULT = ("invalid_request", "context_length_exceeded", "bad_route", "model_not_found", NOT_UTF8)
"""Asking the same again would end the same."""
PATIENCE_S = 60.0
"""How long a lost tracker is waited for: a restart takes one second, and its nodes are back within 20 s."""
LOOK_EVERY_S = 0.5
HELP = """\
/reset           forget the conversation
/route A,B       pin the route (names or node_ids); /route auto lets the mesh choose
/system TEXT     what the model is told first; /system alone removes it
/model NAME      another model
/again           ask the last question again
/exit            leave (or Ctrl-D)
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer."""


class Conversation:
    """One session. ``runner`` carries its event loop, so that one HTTP client lasts from question to question;
    ``read`` asks for a line and raises EOFError at the end."""

    def __init__(
        self,
        runner: asyncio.Runner,
        url: str,
        wishes: Wishes,
        read: Callable[[str], str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._runner = runner
        self._url = url
        self._wishes = wishes
        self._read = read or _line_reader()
        self._messages: list[Message] = []
        self._last: str | None = None
        self._out = console()
        self._tracker: TrackerClient

    def run(self) -> None:
        """Until the end of input or /exit. Raises what keeps it from beginning at all (no tracker, no model)."""
        stack = contextlib.AsyncExitStack()
        try:
            http = self._await(stack.enter_async_context(open_client(os.environ)))
            self._tracker = TrackerClient(http, self._url)
            with strangers_named(self._url):
                model = self._await(choose_model(self._tracker, self._wishes.model))
            self._wishes = replace(self._wishes, model=model)
            self._wishes = replace(self._wishes, route=self._await(resolve_route(self._tracker, self._wishes.route)))
            self._out.print(dim(f"{self._wishes.model} at {self._url}. /help lists commands, Ctrl-D ends."))
            while (line := self._next_line()) is not None and self._obey(line):
                pass
        finally:
            self._await(stack.aclose())

    def _next_line(self) -> str | None:
        """A whole input, continuation lines joined; None at the end."""
        parts: list[str] = []
        while True:
            try:
                line = self._read(PROMPT if not parts else ". ")
            except EOFError:
                self._out.print()
                return None
            except UnicodeDecodeError as error:
                complain(f"That is not {error.encoding} text.")
                continue
            except KeyboardInterrupt:
                self._out.print()
                self._out.print(dim("Ctrl-D or /exit ends."))
                parts = []
                continue
            if line.endswith("\\"):
                parts.append(line[:-1])
                continue
            return "\n".join([*parts, line])

    def _obey(self, line: str) -> bool:
        """Do what the line says; False to end."""
        text = line.strip()
        if not text:
            return True
        if not text.startswith("/"):
            self._answer(text)
            return True
        word, _, rest = text.partition(" ")
        if word in ("/exit", "/quit"):
            return False
        try:
            self._command(word, rest.strip())
        except MeshnetError as error:
            complain(error.message)
        return True

    def _command(self, word: str, rest: str) -> None:
        match word:
            case "/help":
                self._out.print(HELP)
            case "/reset":
                self._messages, self._last = [], None
                self._say("The conversation is forgotten.")
            case "/route":
                self._set_route(rest)
            case "/system":
                self._wishes = replace(self._wishes, system=rest or None)
                self._say("The system text is set." if rest else "There is no system text now.")
            case "/model":
                model = self._await(choose_model(self._tracker, rest or self._wishes.model))
                self._wishes = replace(self._wishes, model=model, route=())
                self._say(f"The model is {model}.")
            case "/again" if self._last is not None:
                self._drop_last_turn()
                self._answer(self._last)
            case "/again":
                self._say("Nothing was asked yet.")
            case _:
                self._say(f"There is no command {word}; /help lists them.")

    def _set_route(self, rest: str) -> None:
        words = tuple(filter(None, (word.strip() for word in rest.split(","))))
        if words:
            route = () if words == ("auto",) else self._await(resolve_route(self._tracker, words))
            self._wishes = replace(self._wishes, route=route)
        names = self._await(names_of(self._tracker)) if self._wishes.route else {}
        pinned = " -> ".join(names.get(node_id) or node_id for node_id in self._wishes.route)
        self._say(f"The route is pinned to {pinned}." if pinned else "The mesh chooses the route.")

    def _answer(self, text: str) -> None:
        """Ask until there is an answer, or the person has had enough."""
        self._last = text
        while self._try(text) and self._wants_again():
            pass

    def _try(self, text: str) -> bool:
        """Ask once. True if it failed in a way that another try may mend."""
        answer = Answer(self._wishes.model or "")
        turn: list[Message] = [*self._messages, {"role": "user", "content": text}]
        try:
            self._await(ask(self._tracker, turn, self._wishes, answer, _write))
        except KeyboardInterrupt:
            answer.stopped = True
        except MeshnetError as error:
            self._complain(error, answer)
            if error.code in LOST_TRACKER:
                self._wait_for_tracker()
            return error.code not in (
                "invalid_request",
                "context_length_exceeded",
                "bad_route",
                "model_not_found",
                NOT_UTF8,
            )
        _write("\n")
        if answer.error is not None:
            self._complain(answer.error, answer, "The answer was cut off: ")
            if answer.error.code in LOST_TRACKER:
                self._wait_for_tracker()
        self._say("stopped" if answer.stopped else self._await(summary(self._tracker, answer)))
        if answer.text:
            self._messages = [*turn, {"role": "assistant", "content": answer.text}]
        return answer.error is not None

    def _complain(self, error: MeshnetError, answer: Answer, before: str = "") -> None:
        message = self._await(with_names(self._tracker, error.message, answer.call_id))
        complain(before + message, hint=hint_of(error))

    def _wait_for_tracker(self) -> None:
        """Say that it is gone and wait until a model can answer there again; Ctrl-C ends the wait."""
        self._say(f"The tracker at {self._url} is lost; waiting for it (Ctrl-C stops waiting).")
        try:
            back = self._await(ready_again(self._tracker, self._patience_s))
        except KeyboardInterrupt:
            return
        self._say("It is back." if back else f"It is not back after {self._patience_s:g} s.")

    def _wants_again(self) -> bool:
        try:
            reply = self._read("Ask again? [y/N] ").strip().lower()
        except (EOFError, KeyboardInterrupt):
            self._out.print()
            return False
        if reply not in ("y", "yes"):
            return False
        self._drop_last_turn()
        return True

    def _drop_last_turn(self) -> None:
        """Take back the last question and what came of its answer."""
        if self._last is not None and self._messages[-2:-1] == [{"role": "user", "content": self._last}]:
            self._messages = self._messages[:-2]

    def _await(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return self._runner.run(run())

    def _say(self, text: str) -> None:
        self._out.print(dim(text), soft_wrap=True)


async def summary(tracker: TrackerClient, answer: Answer) -> str:
    """``exploit | n1[0-14] -> n2[15-29] | 24 tokens | first after 0.21 s | 18.4 tok/s | because …``."""
    names = await names_of(tracker, answer.call_id if answer.meshnet.get("rerouted") else "")
    names = {node_id: visible(name) for node_id, name in names.items()}
    parts = [answer.mode, short_route(answer.route, names)]
    if answer.completion_tokens is not None:
        parts.append(f"{answer.completion_tokens} tokens")
    if answer.ttft_s is not None:
        parts.append(f"first after {answer.ttft_s:.2f} s")
    if answer.tps is not None:
        parts.append(f"{answer.tps:.1f} tok/s")
    if answer.finish_reason == "length":
        parts.append("cut at max tokens")
    parts.append(reroutes(answer, names))
    if why := answer.meshnet.get("why"):
        parts.append(f"because {why}")
    return " | ".join(filter(None, parts))


async def ready_again(tracker: TrackerClient, within_s: float) -> bool:
    """Whether a model could answer at this tracker before the time was over."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(MeshnetError):
                    if await tracker.ready():
                        return True
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        return False


def _line_reader() -> Callable[[str], str]:
    """``input`` with line editing and the session's history, where the system has readline."""
    with contextlib.suppress(ImportError):
        import readline

        readline.set_auto_history(True)
    return input


def _write(text: str) -> None:
    sys.stdout.write(visible_text(text))
    sys.stdout.flush()
