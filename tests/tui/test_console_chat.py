"""Chat under a pilot: what is asked, shown, stopped and kept."""

from __future__ import annotations

import asyncio
import re

import msgspec
from textual.widgets import Input

from meshnet.domain.errors import NodeFailed, Unreachable
from tests.tui import canned
from tests.tui.apps import console, lane
from tests.tui.rest import feed, poll, press, settle, wait_for
from tests.tui.screen_text import text_of
from tui.chat import between_hops
from tui.draw.spans import plain, width_of
from tui.views.chat_view import ChatView

replace = msgspec.structs.replace


async def test_chat_over_a_pinned_route_says_what_the_pin_costs() -> None:
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "down", "down", "c")
        await settle(pilot)
        assert "pinned a100-1>3090-1" in text_of(app)
        await press(pilot, *"hello", "enter")
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
        await press(pilot, *"more", "enter")
        await wait_for(lambda: len(source.asked) == 2, pilot)
        assert [turn.role for turn in source.asked[1].messages] == ["user", "assistant", "user"]


async def test_settings_are_typed_sent_and_shown() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "6", *"hi", "enter")
        await wait_for(lambda: lane(app).turns and not lane(app).is_streaming, pilot)
        drawn = source.asked[0].seed
        assert drawn is not None and source.asked[0].max_tokens is None
        await settle(pilot)
        assert f"seed {drawn} (random)" in text_of(app)
        await press(pilot, "escape", "r")
        await wait_for(lambda: len(source.asked) == 2 and not lane(app).is_streaming, pilot)
        assert source.asked[1].seed == drawn, "asked again with the same dice"
        await press(pilot, "escape", "s")
        assert app.main is not None
        entry = app.main.query_one("#prompt", Input)
        assert entry.value == ":set temperature=0.3 seed=random max_tokens=auto"
        entry.value = ":set temperature=0.9 seed=41 max_tokens=17"
        await press(pilot, "enter")
        entry.value = ":policy greedy"
        await press(pilot, "enter", *"hi", "enter")
        await wait_for(lambda: len(source.asked) == 3 and not lane(app).is_streaming, pilot)
        ask = source.asked[2]
        assert (ask.temperature, ask.seed, ask.max_tokens, ask.policy) == (0.9, 41, 17, "greedy")
        source.explain_failure = Unreachable("the tracker is gone")
        await press(pilot, *":seed", "space", "x", "enter")
        assert "seed 'x' is not a whole number" in app.message
        assert entry.value == ":seed x", "what is wrong stays, to be mended"
        entry.value = ""
        await press(pilot, *"hi", "enter")
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
        await press(pilot, "6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].tokens == 1, pilot)
        assert lane(app).is_streaming
        await press(pilot, "escape")
        await wait_for(lambda: source.closed_chats == 1, pilot)
        assert lane(app).turns[-1].finish == "stopped"
        source.gate.set()
        await settle(pilot)
        assert app.message == "stopped"
        assert "  stopped" in text_of(app)


async def test_an_answer_that_breaks_is_kept_and_explained() -> None:
    app = console()
    app.source.chat_failure = NodeFailed("node 3090-1 broke [/b] the connection")  # type: ignore[attr-defined]
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish == "failed", pilot)
        await settle(pilot)
        assert "Paged attention" in text_of(app)
        assert "node 3090-1 broke [/b] the connection" in text_of(app)


async def test_a_race_asks_both_routes_with_one_seed_and_compares() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "down", "b")
        await settle(pilot)
        await press(pilot, *"hello", "enter")
        await wait_for(lambda: all(lane(app, n).turns and lane(app, n).turns[-1].finish for n in "ab"), pilot)
        await settle(pilot)
        first, second = app.source.asked  # type: ignore[attr-defined]
        assert first.seed == second.seed
        assert first.temperature == second.temperature == 0.3
        assert {first.route == (), second.route == ()} == {True, False}
        assert "same text" in text_of(app)


async def test_a_race_in_a_small_terminal_cuts_no_sum() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "down", "down", "b")
        await settle(pilot)
        await press(pilot, *"hello", "enter")
        await wait_for(lambda: all(lane(app, n).turns and lane(app, n).turns[-1].finish for n in "ab"), pilot)
        await poll(pilot)
        (row,) = [row for row in text_of(app).splitlines() if "ms/tok: hops" in row]
        assert re.search(r"ms/tok: hops \d+\.\d, between \d+\.\d ", row), row
        room = lane(app, "b").size.width
    for scale in (1, 10, 100):
        hops = (replace(canned.A, computing_us=18_700 * scale, queued_us=100 * scale),)
        slow = canned.call(1, "exploit", hops, ttft_s=0.2, duration_s=0.2 + 147 * 0.0999 * scale)
        assert width_of(between_hops(slow)) <= room, plain(between_hops(slow))


async def test_quitting_in_mid_stream_asks_once_and_is_clean() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    source.gate = asyncio.Event()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "6", *"hello", "enter")
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].tokens == 1, pilot)
        await press(pilot, "1")
        await settle(pilot)
        await press(pilot, "q")
        assert "q again" in app.message
        await pilot.press("q")
    assert app.return_code == 0
    assert source.closed_chats == 1


async def test_a_model_that_vanishes_leaves_the_chat_alive() -> None:
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "6")
        await settle(pilot)
        await feed(pilot, canned.empty())
        assert "not every layer is held" in text_of(app)
        view = app.main and app.main.active
        assert isinstance(view, ChatView)
        await press(pilot, "escape", "m", "o", "N", "y", "p", "escape")
        assert app.is_running
