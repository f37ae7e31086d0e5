"""Random keys, sizes and answers against a mesh whose every text is hostile: nothing crashes, nothing leaks through."""

from __future__ import annotations

import random

import pytest

from meshnet.domain.errors import MeshnetError, Unreachable
from tests.tui import canned
from tests.tui.apps import console
from tests.tui.hostile import evil_mesh, hostile_events
from tests.tui.rest import key_event, settle
from tests.tui.screen_text import text_of
from tui.app import ConsoleApp

KEYS = (
    *"1234567/:?snfztrePMTcbpqrmoNyijkgGS[]!&x ", "enter", "escape", "up", "down", "pageup", "pagedown", "home", "end",
    "tab", "shift+tab", "left", "right", "backspace", "delete", "f1", "ctrl+p", "ctrl+a", "ctrl+w",
)  # fmt: skip
SIZES = ((80, 24), (120, 40), (40, 10), (1, 1), (200, 60), (79, 13))
MESHES = (evil_mesh, canned.mesh, canned.empty, canned.one_node, lambda: canned.crowd(20, 40))
LEFT_OUT = {"q": "quitting ends the run", "e": "writes files", "T": "themes have their own test, and cost a second"}


async def torture(app: ConsoleApp, dice: random.Random, rounds: int) -> None:
    """Bursts of keys, then a look at the screen."""
    source = app.source
    assert isinstance(source, canned.CannedSource)
    keys = [key for key in KEYS if key not in LEFT_OUT]
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for _ in range(rounds):
            for key in dice.choices(keys, k=dice.randrange(1, 8)):
                app.post_message(key_event(key))
            await pilot.pause()
            if dice.random() < 0.15:
                await pilot.resize_terminal(*dice.choice(SIZES))
            if dice.random() < 0.2:
                source.now_shown = dice.choice(MESHES)()
                failure: MeshnetError | None = Unreachable("gone\x1b[2J [/b]") if dice.random() < 0.3 else None
                source.failure = source.chat_failure = source.explain_failure = failure
                snapshot = await app.poller.tick()
                if snapshot is not None:
                    app.history.add(app.clock(), snapshot)
                app.redraw()
                await pilot.pause()
            assert not set("\x1b\x07\r\u202e") & set(text_of(app))
            assert app.is_running


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_random_keys_never_break_it(seed: int) -> None:
    app = console(evil_mesh(), events=hostile_events())
    await torture(app, random.Random(seed), rounds=60)
    assert app.return_code in (0, None)


if __name__ == "__main__":
    import asyncio
    import sys

    first, count = int(sys.argv[1]), int(sys.argv[2])
    for each in range(first, first + count):
        asyncio.run(torture(console(evil_mesh(), events=hostile_events()), random.Random(each), rounds=150))
        print(f"seed {each}: ok", flush=True)
