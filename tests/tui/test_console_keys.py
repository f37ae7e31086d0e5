"""Keys under a pilot: each in each view, typed fast, in the palette, in help and in the line of keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.widgets import Input

from tests.tui import canned
from tests.tui.apps import Clock, console, lane, table_view
from tests.tui.rest import key_event, press, settle, wait_for
from tests.tui.screen_text import text_of
from tui.app import HINT_S, ConsoleApp
from tui.draw import frame
from tui.screens.details import DetailsScreen
from tui.screens.help import HelpScreen
from tui.screens.menu import MenuScreen
from tui.views.table_view import TableView


def type_at_once(app: ConsoleApp, *keys: str) -> None:
    """As a paste or a script sends them: all before the first is handled."""
    for key in keys:
        app.post_message(key_event(key))


async def test_keys_typed_in_one_instant_go_where_the_one_before_them_leads() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        type_at_once(app, "3", "down", "down", "1", "/", *"3090", "enter", "3")
        routing = app.main and app.main.query_one("#routing", TableView)
        await wait_for(lambda: routing and routing.words and app.main and app.main.active_name == "nodes", pilot)
        assert table_view(app).table.cursor_row == 2
        type_at_once(app, "1")
        await settle(pilot)
        assert len(table_view(app).table.rows) == 2
        type_at_once(app, "/", "escape", "6", *"hi", "enter")
        source = app.source
        assert isinstance(source, canned.CannedSource)
        await wait_for(lambda: source.asked and not lane(app).is_streaming, pilot)
        assert source.asked[0].messages[-1].content == "hi"
        await settle(pilot)
        type_at_once(app, "escape", "1", ":", *"events", "enter")
        await wait_for(lambda: app.main and app.screen is app.main and app.main.active_name == "events", pilot)


async def test_palette_has_every_action_of_the_view() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Filter", "Hold", "Sort", "Chat on this route", "Next problem", "Export", "Export 15 minutes"} <= titles
        await press(pilot, "colon", *"events", "enter")
        await settle(pilot)
        assert app.main is not None
        assert app.main.active_name == "events"


async def test_open_help_and_copy_come_and_go() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "enter")
        await settle(pilot)
        assert isinstance(app.screen, DetailsScreen)
        assert "recent calls over this route" in text_of(app)
        await press(pilot, "escape", "question_mark")
        await settle(pilot)
        assert isinstance(app.screen, HelpScreen)
        assert "Step back in time" in text_of(app)
        await press(pilot, "q", "y")
        await settle(pilot)
        assert isinstance(app.screen, MenuScreen)
        assert "meshnet chat --model m-7b --route" in text_of(app)
        await press(pilot, "enter")
        await settle(pilot)
        assert app.screen is app.main
        assert app.message.startswith("copied cli: meshnet chat")


async def test_themes_and_mouse_change_without_a_restart() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "T")
        assert app.theme == "ansi-dark"
        await press(pilot, "M")
        await settle(pilot)
        assert "mouse" in text_of(app)


ALL_KEYS = (
    "up", "down", "pageup", "pagedown", "home", "end", "g", "G", "j", "k", "s", "S", "space", "space", "f", "z", "z",
    "left_square_bracket", "right_square_bracket", "t", "r", "n", "P", "P", "enter", "escape", "y",
    "escape", "question_mark", "escape", "slash", "x", "escape", "colon", "escape", "c", "escape", "escape", "1", "b",
    "escape", "escape", "tab", "shift+tab",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "views"),
    [(canned.empty, ("routing", "chat")), (canned.mesh, [name for name, _ in frame.VIEWS])],
    ids=["empty", "mesh"],
)
async def test_every_key_in_every_view(mesh: object, views: Sequence[str]) -> None:
    app = console(mesh(), read_only=True)  # type: ignore[operator]
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for view in views:
            for key in ALL_KEYS:
                if app.screen is app.main and app.main and app.main.active_name != view:
                    app.action_view(view)
                await press(pilot, key)
            await settle(pilot)
            while app.screen is not app.main:
                await press(pilot, "escape")
                await settle(pilot)
        assert app.is_running


def last_line(app: ConsoleApp) -> str:
    return text_of(app).splitlines()[-1]


async def test_the_line_of_keys_says_what_works_while_one_types() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "? help" in last_line(app)
        await press(pilot, "slash", "q", "question_mark")
        await settle(pilot)
        assert last_line(app).split("  ")[:4] == ["enter keep", "esc clear", "ctrl+p cmd", "ctrl+q quit"]
        await press(pilot, "escape", "6")
        await settle(pilot)
        assert last_line(app).strip() == "enter send  esc keys  : settings  ctrl+p cmd  ctrl+q quit"
        await press(pilot, "q", "question_mark")
        assert app.main is not None
        assert app.screen is app.main
        assert app.main.query_one("#prompt", Input).value == "q?"
        await press(pilot, "ctrl+p")
        await settle(pilot)
        assert app.screen is not app.main, "what it names works"
        await press(pilot, "escape", "escape")
        await settle(pilot)
        assert "? help" in last_line(app) and "i write" in last_line(app)


async def test_every_view_says_how_to_leave_and_to_get_help() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for name, _ in frame.VIEWS:
            app.action_view(name)
            await press(pilot, "escape")  # Chat comes up with its entry in focus.
            for width, rest in ((80, "  "), (18, "")):
                await pilot.resize_terminal(width, 24)
                await settle(pilot)
                assert last_line(app).rstrip().endswith(f"{rest}q quit  ? help"), (name, width)
            await pilot.resize_terminal(80, 24)
            await settle(pilot)
            assert name == "chat" or "enter open  / filter  s sort  space hold" in last_line(app)


def problem_line(app: ConsoleApp) -> str:
    return text_of(app).splitlines()[-2].strip()


async def test_the_word_that_keys_are_free_goes_by_time_by_key_and_by_view() -> None:
    clock = Clock(1000.0)
    app = console(canned.empty(), clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "6", "escape")
        await settle(pilot)
        assert app.shown and not app.shown.problems
        assert problem_line(app).startswith("keys are free")
        await press(pilot, "j")
        assert problem_line(app) == "", "the next key"
        await press(pilot, "i", "escape")
        assert app.main is not None
        app.main.switch("events")  # As a click on its tab does.
        await settle(pilot)
        assert problem_line(app) == "", "another view"
        await press(pilot, "6", "escape")
        assert problem_line(app).startswith("keys are free")
        clock.now += HINT_S
        app._every_second()
        await settle(pilot)
        assert problem_line(app) == "", "its time"


async def test_the_word_that_keys_are_free_covers_no_problem() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        named = problem_line(app)
        assert named.startswith("! ")
        await press(pilot, "6", "escape")
        await settle(pilot)
        assert problem_line(app) == named
        assert "i write" in last_line(app)


async def test_the_palette_names_each_key_once() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for name, _ in frame.VIEWS:
            app.action_view(name)
            await settle(pilot)
            keys = [c.help for c in app.get_system_commands(app.screen) if c.help.startswith("key ")]
            assert len(keys) == len(set(keys)), name
        app.action_view("chat")
        helps = {command.title: command.help for command in app.get_system_commands(app.screen)}
        assert helps["Ask the last question again"] == "key r"
        assert helps["Ask the tracker now"] == "no key in this view"


@pytest.mark.parametrize("only_ascii", [False, True])
@pytest.mark.parametrize("view", ["routing", "calls", "chat"])
async def test_help_shows_every_key_and_every_sign_at_80_by_24(view: str, only_ascii: bool) -> None:
    app = console(ascii=only_ascii)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        app.action_view(view)
        app.action_help()
        await settle(pilot)
        shown = text_of(app)
        for words in ("Quit", "1-7", "Signs", "+ good, proven", "? unsampled", "* next scout", "o loading", "~ suspect",
                      "v draining", "! wrong: ejected", "x failed", "E exploit", "- cancelled"):  # fmt: skip
            assert words in shown, words
        assert "scroll" not in shown, "nothing is below"
        await pilot.resize_terminal(80, 12)
        await settle(pilot)
        assert "up down scroll" in text_of(app)
        await press(pilot, "end")
        await settle(pilot)
        assert "x failed" in text_of(app)
        assert text_of(app).isascii() or not only_ascii
