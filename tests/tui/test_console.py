"""The whole console under a pilot: every key, every view, every size, and a tracker that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input

from meshnet.domain.errors import NodeFailed, Unreachable
from meshnet.wire.status import Snapshot
from tests.tui import canned
from tests.tui.apps import Clock, console
from tests.tui.hostile import HOSTILE, evil_mesh, hostile_events
from tests.tui.pictures import fall_silent
from tests.tui.rest import console_of, poll, settle
from tests.tui.screen_text import text_of
from tui.app import ConsoleApp
from tui.draw import frame
from tui.screens.details import DetailsScreen
from tui.screens.help import HelpScreen
from tui.screens.menu import MenuScreen
from tui.views.chat_view import ChatView
from tui.views.table_view import TableView
from tui.widgets.lane import Lane

replace = msgspec.structs.replace


def table_view(app: ConsoleApp) -> TableView:
    assert app.main is not None
    view = app.main.active
    assert isinstance(view, TableView)
    return view


async def feed(pilot: Pilot[None], snapshot: object) -> None:
    """One more poll with this answer."""
    console_of(pilot).source.now_shown = snapshot  # type: ignore[attr-defined]
    await poll(pilot)


async def test_the_cursor_stays_on_its_route_while_the_table_is_resorted() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("down", "down")
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
        await pilot.press("s", "s", "S")
        assert view.table.cursor_key == key


async def test_hold_keeps_places_and_counts_what_waits() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3", "space")
        before = [row.key for row in table_view(app).table.rows]
        snapshot = canned.mesh()
        nodes = (canned.node("aaa-new", 0, 3), *snapshot.nodes[1:])
        await feed(pilot, replace(snapshot, nodes=nodes))
        view = table_view(app)
        assert [row.key for row in view.table.rows] == before
        assert "HELD, 1 new wait" in text_of(app)
        assert [row.gone for row in view.table.rows].count(True) == 1
        await pilot.press("space")
        assert view.table.rows[2].key == canned.node_id("aaa-new", 0, 3) or "aaa-new" in text_of(app)


async def test_filter_narrows_esc_widens_and_each_view_keeps_its_own() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"3090", "enter")
        assert len(table_view(app).table.rows) == 2
        await pilot.press("3")
        await settle(pilot)
        assert len(table_view(app).table.rows) == 6
        await pilot.press("1")
        await settle(pilot)
        assert len(table_view(app).table.rows) == 2
        await pilot.press("escape")
        assert len(table_view(app).table.rows) == 8
        await pilot.press("slash", *"!3090", "enter")
        assert len(table_view(app).table.rows) == 6


async def test_each_view_keeps_its_cursor() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3", "down", "down")
        key = table_view(app).table.cursor_key
        await pilot.press("1", "2", "7", "3")
        await settle(pilot)
        assert table_view(app).table.cursor_key == key


def type_at_once(app: ConsoleApp, *keys: str) -> None:
    """As a paste or a script sends them: all before the first is handled."""
    for key in keys:
        app.post_message(Key({"/": "slash", ":": "colon"}.get(key, key), key if len(key) == 1 else None))


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


async def test_next_problem_walks_through_the_views() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("n")
        await settle(pilot)
        assert app.main is not None
        assert app.main.active_name == "nodes"
        assert table_view(app).table.cursor_key == canned.node_id("m2-1", 16, 23)
        await pilot.press("n")
        await settle(pilot)
        assert app.main.active_name == "calls"
        assert table_view(app).table.cursor_key == "call-01j9z000396"


async def test_palette_has_every_action_of_the_view() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Filter", "Hold", "Sort", "Chat on this route", "Next problem", "Export", "Export 15 minutes"} <= titles
        await pilot.press("colon", *"events", "enter")
        await settle(pilot)
        assert app.main is not None
        assert app.main.active_name == "events"


async def test_open_help_and_copy_come_and_go() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, DetailsScreen)
        assert "recent calls over this route" in text_of(app)
        await pilot.press("escape", "question_mark")
        await settle(pilot)
        assert isinstance(app.screen, HelpScreen)
        assert "Step back in time" in text_of(app)
        await pilot.press("q", "y")
        await settle(pilot)
        assert isinstance(app.screen, MenuScreen)
        assert "meshnet chat --model m-7b --route" in text_of(app)
        await pilot.press("enter")
        await settle(pilot)
        assert app.screen is app.main
        assert app.message.startswith("copied cli: meshnet chat")


async def test_time_travel_shows_the_past_and_says_so() -> None:
    clock = Clock(1000.0)
    app = console(canned.empty(), clock=clock)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        clock.now += 4
        await feed(pilot, canned.mesh())
        assert "a100-1>4090-2" in text_of(app)
        await pilot.press("left_square_bracket")
        await settle(pilot)
        assert "4s AGO" in text_of(app)
        assert "a100-1>4090-2" not in text_of(app)
        await pilot.press("t")
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
        await pilot.press("2")
        await settle(pilot)
        assert "the call wall is not served by this tracker" in text_of(app)


async def test_themes_and_mouse_change_without_a_restart() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("T")
        assert app.theme == "ansi-dark"
        await pilot.press("M")
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
                await app._press_keys([key])
            await settle(pilot)
            while app.screen is not app.main:
                await pilot.press("escape")
                await settle(pilot)
        assert app.is_running


SIZES = ((1, 1), (10, 3), (20, 5), (40, 10), (70, 24), (80, 24), (120, 40), (200, 60))


def small_crowd() -> Snapshot:
    """More nodes and routes than any of these sizes shows."""
    return canned.crowd(70, 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [(canned.empty, SIZES[:2]), (canned.mesh, SIZES[2:5]), (small_crowd, SIZES)],
    ids=["empty", "mesh", "crowd"],
)
async def test_every_view_at_every_size(mesh: object, sizes: tuple[tuple[int, int], ...]) -> None:
    app = console(mesh())  # type: ignore[operator]
    async with app.run_test(size=(80, 24)) as pilot:
        for name, _ in frame.VIEWS:
            app.action_view(name)
            for size in sizes:
                await pilot.resize_terminal(*size)
                await pilot.pause()
        assert app.is_running


async def test_starts_in_the_smallest_terminal_and_grows() -> None:
    app = console()
    async with app.run_test(size=(1, 1)) as pilot:
        await settle(pilot)
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "a100-1>4090-2" in text_of(app)


# ---- chat


async def wait_for(check: object, pilot: Pilot[None]) -> None:
    for _ in range(200):
        if check():  # type: ignore[operator]
            return
        await pilot.pause()
    raise AssertionError("did not come")


def lane(app: ConsoleApp, name: str = "a") -> Lane:
    assert app.main is not None
    return app.main.query_one(f"#lane-{name}", Lane)


async def test_chat_over_a_pinned_route_says_what_the_pin_costs() -> None:
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("down", "down", "c")
        await settle(pilot)
        assert "pinned a100-1>3090-1" in text_of(app)
        await pilot.press(*"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish == "stop", pilot)
        await settle(pilot)
        source = app.source
        assert isinstance(source, canned.CannedSource)
        assert source.asked[0].route == tuple(hop.node_id for hop in (canned.A_HEAD, canned.C))
        assert "Paged attention stores KV in blocks." in text_of(app)
        assert source.explained == [("m-7b", (), None)], "asked of the tracker, not guessed"
        await feed(pilot, source.now_shown)
        shown = text_of(app)
        assert "auto would have used a100-1 (exploit, p 0.55): expected 44.1 tok/s, so this pin costs 28%" in " ".join(
            shown.split()
        )
        assert "18.7 ms" in shown, "the hop's time, from the call's record"
        await pilot.press(*"more", "enter")
        await wait_for(lambda: len(source.asked) == 2, pilot)
        assert [turn.role for turn in source.asked[1].messages] == ["user", "assistant", "user"]


async def test_settings_are_typed_sent_and_shown() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6", *"hi", "enter")
        await wait_for(lambda: lane(app).turns and not lane(app).is_streaming, pilot)
        drawn = source.asked[0].seed
        assert drawn is not None and source.asked[0].max_tokens is None
        await settle(pilot)
        assert f"seed {drawn} (random)" in text_of(app)
        await pilot.press("escape", "r")
        await wait_for(lambda: len(source.asked) == 2 and not lane(app).is_streaming, pilot)
        assert source.asked[1].seed == drawn, "asked again with the same dice"
        await pilot.press("escape", "s")
        assert app.main is not None
        entry = app.main.query_one("#prompt", Input)
        assert entry.value == ":set temperature=0.3 seed=random max_tokens=auto"
        entry.value = ":set temperature=0.9 seed=41 max_tokens=17"
        await pilot.press("enter")
        entry.value = ":policy greedy"
        await pilot.press("enter", *"hi", "enter")
        await wait_for(lambda: len(source.asked) == 3 and not lane(app).is_streaming, pilot)
        ask = source.asked[2]
        assert (ask.temperature, ask.seed, ask.max_tokens, ask.policy) == (0.9, 41, 17, "greedy")
        source.explain_failure = Unreachable("the tracker is gone")
        await pilot.press(*":seed", "space", "x", "enter")
        assert "seed 'x' is not a whole number" in app.message
        assert entry.value == ":seed x", "what is wrong stays, to be mended"
        entry.value = ""
        await pilot.press(*"hi", "enter")
        await wait_for(lambda: len(source.asked) == 4 and not lane(app).is_streaming, pilot)
        await settle(pilot)
        assert "auto would have used is not known: the tracker is gone" in text_of(app)


async def test_esc_stops_the_stream_and_closes_it() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    source.gate = asyncio.Event()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].tokens == 1, pilot)
        assert lane(app).is_streaming
        await pilot.press("escape")
        await wait_for(lambda: source.closed_chats == 1, pilot)
        assert lane(app).turns[-1].finish == "stopped"


async def test_an_answer_that_breaks_is_kept_and_explained() -> None:
    app = console()
    app.source.chat_failure = NodeFailed("node 3090-1 broke [/b] the connection")  # type: ignore[attr-defined]
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish == "failed", pilot)
        await settle(pilot)
        assert "Paged attention" in text_of(app)
        assert "node 3090-1 broke [/b] the connection" in text_of(app)


async def test_a_race_asks_both_routes_with_one_seed_and_compares() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("down", "b")
        await settle(pilot)
        await pilot.press(*"hello", "enter")
        await wait_for(lambda: all(lane(app, n).turns and lane(app, n).turns[-1].finish for n in "ab"), pilot)
        await settle(pilot)
        first, second = app.source.asked  # type: ignore[attr-defined]
        assert first.seed == second.seed
        assert first.temperature == second.temperature == 0.3
        assert {first.route == (), second.route == ()} == {True, False}
        assert "same text" in text_of(app)


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_read_only_never_asks_and_never_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = console(read_only=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("e", "6", *"hello", "enter", "escape", "e")
        await settle(pilot)
        assert app.source.asked == []  # type: ignore[attr-defined]
    assert files(tmp_path) == []


async def test_export_writes_what_is_shown_without_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("2", "e")
    (path,) = files(tmp_path)
    text = path.read_text()
    assert '"call-01j9z000400"' in text
    assert "paged attention" not in text
    assert str(path) in app.message


async def test_quitting_in_mid_stream_asks_once_and_is_clean() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    source.gate = asyncio.Event()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].tokens == 1, pilot)
        await pilot.press("1")
        await settle(pilot)
        await pilot.press("q")
        assert "q again" in app.message
        await pilot.press("q")
    assert app.return_code == 0
    assert source.closed_chats == 1


@pytest.mark.slow
async def test_resizing_and_switching_while_it_streams() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    source.words = [f"word{i} " for i in range(150)]
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6", *"hello", "enter")
        for size in (*SIZES, SIZES[0], SIZES[-1]):
            await pilot.resize_terminal(*size)
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
        assert lane(app).turns[-1].answer == "".join(source.words)


async def test_a_model_that_vanishes_leaves_the_chat_alive() -> None:
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("6")
        await settle(pilot)
        await feed(pilot, canned.empty())
        assert "not every layer is held" in text_of(app)
        view = app.main and app.main.active
        assert isinstance(view, ChatView)
        await pilot.press("escape", "m", "o", "N", "y", "p", "escape")
        assert app.is_running


# ---- hostile text


@pytest.mark.slow
async def test_hostile_text_is_shown_and_never_obeyed() -> None:
    app = console(evil_mesh(), events=hostile_events())
    table = [f"| {text} |\n" for text in HOSTILE]
    app.source.words = [*HOSTILE, "\n\n| a |\n|---|\n", *table]  # type: ignore[attr-defined]
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("P")
        for name, _ in frame.VIEWS:
            app.action_view(name)
            await settle(pilot)
            if name == "chat":
                await pilot.press(*"hi", "enter")
                await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
                await settle(pilot)
            shown = text_of(app)
            assert not set("\x1b\x07\r\u202e\u200d") & set(shown)
            assert {strip.cell_length for strip in app.screen._compositor.render_strips(app.screen.size)} == {120}
            await pilot.press("escape", "enter", "escape", "y", "down", "escape")
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
                await pilot.press(*"hi", "enter")
                await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
                await settle(pilot)
            assert text_of(app).isascii(), [line for line in text_of(app).splitlines() if not line.isascii()][:3]
