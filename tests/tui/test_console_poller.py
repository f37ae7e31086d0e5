from __future__ import annotations

from meshnet.domain.errors import Unreachable
from tests.tui import canned
from tests.tui.apps import Clock
from tui.plain import follow, printer
from tui.poller import FROZEN_AFTER_S, POLL_S, Poller


async def test_a_silent_tracker_is_asked_less_often_and_recovers_by_itself() -> None:
    clock = Clock(100.0)
    source = canned.CannedSource(canned.mesh())
    poller = Poller(source, clock)
    assert await poller.tick() is not None
    assert (poller.link.is_up, poller.wait_s) == (True, POLL_S)
    source.failure = Unreachable("gone")
    waits = []
    for _ in range(4):
        clock.now += 4
        assert await poller.tick() is None
        waits.append(poller.wait_s)
    assert waits == [2.0, 4.0, 6.0, 6.0]
    assert poller.link.is_frozen(clock.now)
    assert (poller.link.error, poller.link.silent_s(clock.now)) == ("gone", 16.0)
    source.failure = None
    assert await poller.tick() is not None
    assert not poller.link.is_frozen(clock.now)


async def test_a_poll_that_hangs_freezes_too() -> None:
    clock = Clock(0.0)
    poller = Poller(canned.CannedSource(canned.mesh()), clock)
    await poller.tick()
    clock.now += FROZEN_AFTER_S + 1
    assert poller.link.is_frozen(clock.now)
    assert poller.link.failures == 0


async def test_plain_says_once_what_there_is_and_names_an_absent_tracker() -> None:
    said: list[str] = []
    source = canned.CannedSource(canned.one_node())
    assert await follow(Poller(source, Clock(0)), said.append, Clock(canned.NOON), once=True) == 0
    assert [text[9:] for text in said] == [
        "node solo is ready, layers 0-31 of m-7b",
        "problem: m-7b: layers 0-31 are on one node only",
    ]
    said.clear()
    source.failure = Unreachable("nobody there")
    assert await follow(Poller(source, Clock(0)), said.append, Clock(canned.NOON), once=True) == 3
    assert said[0].endswith("no answer: nobody there")


def test_the_printer_flushes_every_line_and_keeps_to_ascii_where_it_must() -> None:
    written: list[str] = []
    flushed: list[None] = []
    printer(written.append, lambda: flushed.append(None), only_ascii=True)("é → 漢")
    assert written == ["? > ??\n"]
    assert len(flushed) == 1


async def test_an_error_with_control_characters_is_made_visible_in_plain() -> None:
    source, said = canned.CannedSource(canned.mesh()), []
    source.failure = Unreachable("gone\x1b[2J")
    say = printer(lambda text: said.append(text) or len(text), lambda: None, False)
    assert await follow(Poller(source, Clock(0.0)), say, Clock(canned.NOON), once=True) != 0
    assert "gone^[[2J" in "".join(said)
    assert "\x1b" not in "".join(said)
