"""Hostile text and terminals without UTF-8: nothing is obeyed, nothing leaks through."""

from __future__ import annotations

import re

import pytest

from tests.tui.apps import console, lane
from tests.tui.hostile import HOSTILE, evil_mesh, hostile_events
from tests.tui.rest import press, settle, wait_for
from tests.tui.screen_text import text_of
from tui.draw import frame


@pytest.mark.slow
async def test_hostile_text_is_shown_and_never_obeyed() -> None:
    app = console(evil_mesh(), events=hostile_events())
    table = [f"| {text} |\n" for text in HOSTILE]
    app.source.words = [*HOSTILE, "\n\n| a |\n|---|\n", *table]  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await press(pilot, "P")
        for name, _ in frame.VIEWS:
            app.action_view(name)
            await settle(pilot)
            if name == "chat":
                await press(pilot, *"hi", "enter")
                await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
                await settle(pilot)
            shown = text_of(app)
            assert not set("\x1b\x07\r\u202e\u200d") & set(shown)
            assert {strip.cell_length for strip in app.screen._compositor.render_strips(app.screen.size)} == {120}
            await press(pilot, "escape", "enter", "escape", "y", "down", "escape")
        for text in HOSTILE:
            app.say(text)
            app.redraw()
            await pilot.pause()
            assert not set("\x1b\x07\r\u202e") & set(text_of(app))


async def test_without_utf8_nothing_but_ascii_is_drawn() -> None:
    app = console(ascii=True)
    app.source.words = ["# 漢字 → • “x”\n\n- a\n- b\n\n> q\n"]  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for name, _ in frame.VIEWS:
            app.action_view(name)
            await settle(pilot)
            if name == "chat":
                await press(pilot, *"hi", "enter")
                await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
                await settle(pilot)
            assert text_of(app).isascii(), [line for line in text_of(app).splitlines() if not line.isascii()][:3]


@pytest.mark.parametrize("only_ascii", [False, True])
async def test_the_map_has_the_signs_of_the_help(only_ascii: bool) -> None:
    app = console(ascii=only_ascii)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "4")
        await settle(pilot)
        silent = next(row for row in text_of(app).splitlines() if " m2-1 " in row and "suspect" in row)
        assert silent.count("~") > 2 and "+" not in silent
        for words in ("o loading", "~ suspect", "v draining"):
            assert words in text_of(app), words


async def test_a_nodes_speed_is_said_to_be_a_mean() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "3")
        await settle(pilot)
        shown = " ".join(text_of(app).split())
        assert " 1 MIN " in shown and "NOW" not in shown
        assert re.search(r" tok/s benchmark .* 1 min mean \d+\.\d ", shown)
