"""When a console under a pilot is at rest. What a test sees must not depend on how busy the machine is, so this waits
for states, never for time: Textual's own ``pilot.pause`` takes a process that gets no processor for an idle one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from textual.events import Key
from textual.pilot import Pilot
from textual.widget import Widget

from meshnet.wire.status import Snapshot
from tests.tui.canned import CannedSource
from tui.app import ConsoleApp
from tui.widgets.lines import Lines

PATIENCE_S = 60.0
"""Longer than this nothing takes on any machine: then the test fails and says what did not come."""


def console_of(pilot: Pilot[None]) -> ConsoleApp:
    assert isinstance(pilot.app, ConsoleApp)
    return pilot.app


async def settle(pilot: Pilot[None]) -> None:
    """Until the first poll is answered, every event heard, every answer ended (or held back by its gate), and nothing
    is left to draw. From then on the console polls only when the test does."""
    app = console_of(pilot)
    until = time.monotonic() + PATIENCE_S
    still = 0
    while still < 2:  # What a first look starts (a callback after a refresh) a second one sees.
        assert time.monotonic() < until, f"not at rest: {_waits_for(app) or 'still drawing'}"
        await _handled(pilot)
        if app._redraw_pending:
            app._redraw_for_events()  # Now, not a quarter of a second later.
        still = still + 1 if not _waits_for(app) and _is_drawn(app) else 0
    app.workers.cancel_group(app, "poll")


async def _handled(pilot: Pilot[None]) -> None:
    """What was queued at every widget is done, and what that left to draw is drawn."""
    await pilot._wait_for_screen()
    pilot.app.screen._on_timer_update()
    await asyncio.sleep(0)


def _waits_for(app: ConsoleApp) -> str:
    """What has been asked and not been answered."""
    source = app.source
    if app.main is None or not app.main.is_mounted or not app.main.query("#header"):
        return "the main screen"
    if not app.main.query_one("#header", Lines).lines:
        return "its first picture"
    if app.shown is None and not app.poller.link.failures:
        return "the first poll"
    if isinstance(source, CannedSource) and not source.events_told:
        return "events"
    held = isinstance(source, CannedSource) and source.gate is not None and not source.gate.is_set()
    running = [worker for worker in app.workers if worker.group in ("chat", "auto") and not worker.is_finished]
    return "" if held or not running else f"answers: {running}"


def _is_drawn(app: ConsoleApp) -> bool:
    """No message is queued anywhere, and the screen has nothing to lay out, repaint or call back."""
    screen = app.screen
    pumps = [app, *screen.walk_children(with_self=True)]
    if app._batch_count or any(pump.message_queue_size or pump._next_callbacks for pump in pumps):
        return False
    if any(
        widget._layout_required or widget._repaint_required
        for widget in screen.walk_children(Widget)
        if widget.is_running
    ):
        return False  # It tells the screen when it is idle next.
    due = (screen._layout_required, screen._scroll_required, screen._repaint_required, screen._recompose_required)
    return not any(due) and not screen._dirty_widgets and not screen._callbacks


async def poll(pilot: Pilot[None]) -> None:
    """One more answer of the tracker, drawn."""
    app = console_of(pilot)
    snapshot = await app.poller.tick()
    assert snapshot is not None
    app.history.add(app.clock(), snapshot)
    app.redraw()
    await settle(pilot)


async def feed(pilot: Pilot[None], snapshot: Snapshot) -> None:
    """One more poll with this answer."""
    source = console_of(pilot).source
    assert isinstance(source, CannedSource)
    source.now_shown = snapshot
    await poll(pilot)


async def wait_for(check: Callable[[], object], pilot: Pilot[None]) -> None:
    """Until ``check`` says so."""
    until = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < until, "did not come"
        await pilot.pause()


CHARACTERS = {"space": " ", "slash": "/", "colon": ":", "question_mark": "?", "exclamation_mark": "!", "ampersand": "&",
              "left_square_bracket": "[", "right_square_bracket": "]"}  # fmt: skip
"""Keys with a name and a character."""


def key_event(key: str) -> Key:
    """A key by its character or its name, as a terminal sends it."""
    names = {character: name for name, character in CHARACTERS.items()}
    return Key(names.get(key, key), CHARACTERS.get(key, key if len(key) == 1 else None))


async def press(pilot: Pilot[None], *keys: str) -> None:
    """One key after the other, each handled by all it concerns before the next."""
    for key in keys:
        pilot.app.post_message(key_event(key))
        await _handled(pilot)
        while not _is_drawn(console_of(pilot)):
            await _handled(pilot)
