"""The console's tables under a pilot: cursor, hold, filter, time, problems, and a tracker that comes and goes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from meshnet.domain.errors import Unreachable
from tests.tui import canned
from tests.tui.apps import Clock, console, table_view
from tests.tui.pictures import fall_silent
from tests.tui.rest import feed, press, settle
from tests.tui.screen_text import text_of
from tui.widgets.lines import Lines

replace = msgspec.structs.replace


async def test_the_cursor_stays_on_its_route_while_the_table_is_resorted() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "down", "down")
        view = table_view(app)
        key = view.table.cursor_key
        view._moved_at = float("-inf")
        snapshot = canned.mesh()
        assert snapshot.routing is not None
        model = snapshot.routing.models[0]
        turned = tuple(replace(c, expected_share=1 - c.expected_share) for c in reversed(model.candidates))
        await feed(
            pilot, replace(snapshot, routing=replace(snapshot.routing, models=(replace(model, candidates=turned),)))
        )
        assert view.table.cursor_key == key
        assert "why a100-1>3090-1" in text_of(app)
        await press(pilot, "s", "s", "S")
        assert view.table.cursor_key == key


async def test_hold_keeps_places_and_counts_what_waits() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "3", "space")
        before = [row.key for row in table_view(app).table.rows]
        snapshot = canned.mesh()
        nodes = (canned.node("aaa-new", 0, 3), *snapshot.nodes[1:])
        await feed(pilot, replace(snapshot, nodes=nodes))
        view = table_view(app)
        assert [row.key for row in view.table.rows] == before
        assert "HELD, 1 new wait" in text_of(app)
        assert [row.gone for row in view.table.rows].count(True) == 1
        await press(pilot, "space")
        assert view.table.rows[2].key == canned.node_id("aaa-new", 0, 3) or "aaa-new" in text_of(app)


async def test_filter_narrows_esc_widens_and_each_view_keeps_its_own() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "slash", *"3090", "enter")
        assert len(table_view(app).table.rows) == 2
        await press(pilot, "3")
        await settle(pilot)
        assert len(table_view(app).table.rows) == 6
        await press(pilot, "1")
        await settle(pilot)
        assert len(table_view(app).table.rows) == 2
        await press(pilot, "escape")
        assert len(table_view(app).table.rows) == 8
        await press(pilot, "slash", *"!3090", "enter")
        assert len(table_view(app).table.rows) == 6


async def test_each_view_keeps_its_cursor() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "3", "down", "down")
        key = table_view(app).table.cursor_key
        await press(pilot, "1", "2", "7", "3")
        await settle(pilot)
        assert table_view(app).table.cursor_key == key


async def test_next_problem_walks_through_the_views() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "n")
        await settle(pilot)
        assert app.main is not None
        assert app.main.active_name == "nodes"
        assert table_view(app).table.cursor_key == canned.node_id("m2-1", 16, 23)
        await press(pilot, "n")
        await settle(pilot)
        assert app.main.active_name == "calls"
        assert table_view(app).table.cursor_key == "call-01j9z000396"


async def test_time_travel_shows_the_past_and_says_so() -> None:
    clock = Clock(1000.0)
    app = console(canned.empty(), clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        clock.now += 4
        await feed(pilot, canned.mesh())
        assert "a100-1>4090-2" in text_of(app)
        await press(pilot, "left_square_bracket")
        await settle(pilot)
        assert "4s AGO" in text_of(app)
        assert "a100-1>4090-2" not in text_of(app)
        await press(pilot, "t")
        await settle(pilot)
        assert "live" in text_of(app)
        assert "a100-1>4090-2" in text_of(app)


async def test_a_silent_tracker_freezes_the_screen_and_everything_recovers() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await fall_silent(pilot)
        shown = text_of(app)
        assert "FROZEN 15s" in shown
        assert "a100-1>4090-2" in shown, "values stay"
        assert app.main is not None and app.main.has_class("-frozen")
        app.source.failure = None  # type: ignore[attr-defined]
        await feed(pilot, canned.mesh())
        assert "FROZEN" not in text_of(app)
        assert not app.main.has_class("-frozen")


async def test_a_tracker_that_was_never_there_is_named() -> None:
    app = console()
    app.source.failure = Unreachable("tracker at http://gw1:7070 is not reachable; start it with: meshnet up")  # type: ignore[attr-defined]
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "no answer yet" in text_of(app)
        assert "start it with: meshnet up" in text_of(app)


async def test_parts_that_are_not_served_are_said_to_be() -> None:
    app = console(canned.one_node(), events=())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "learned routing is not served by this tracker" in text_of(app)
        await press(pilot, "2")
        await settle(pilot)
        assert "the call wall is not served by this tracker" in text_of(app)


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_read_only_never_asks_and_never_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = console(read_only=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "e", "6", *"hello", "enter", "escape", "e")
        await settle(pilot)
        assert app.source.asked == []  # type: ignore[attr-defined]
    assert files(tmp_path) == []


async def test_export_writes_what_is_shown_without_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "2", "e")
        (path,) = files(tmp_path)
        assert f"wrote {path.name} in " in text_of(app), "however long the folder is"
    text = path.read_text()
    assert '"call-01j9z000400"' in text
    assert "paged attention" not in text
    assert str(tmp_path) in app.message


async def test_what_changed_while_it_was_hidden_is_drawn_when_it_comes_back() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert app.main is not None
        pane = app.main.query_one("#routing .pane", Lines)
        assert pane.lines
        await press(pilot, "6")
        await feed(pilot, canned.mesh())
        app.main.switch("routing")
        app.screen._refresh_layout()  # The first picture of it, before anything is asked to redraw.
        inside = pane.content_region.translate(-pane.region.offset)
        kept = [strip.text for strip in pane.render_lines(inside)]
        assert inside.height > 5
        assert kept == [pane.render_line(y).text for y in range(inside.height)]
        await settle(pilot)
        assert "why a100-1" in text_of(app)
