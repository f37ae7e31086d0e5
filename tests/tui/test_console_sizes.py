"""The console from 1×1 to 200×60, also while it streams."""

from __future__ import annotations

import pytest

from meshnet.wire.status import Snapshot
from tests.tui import canned
from tests.tui.apps import console, lane
from tests.tui.rest import press, settle, wait_for
from tests.tui.screen_text import text_of
from tui.draw import frame

SIZES = ((1, 1), (10, 3), (20, 5), (40, 10), (70, 24), (80, 24), (120, 40), (200, 60))


def small_crowd() -> Snapshot:
    """More nodes and routes than any of these sizes shows."""
    return canned.crowd(70, 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [(canned.empty, SIZES[:2]), (canned.mesh, SIZES[1::2]), (small_crowd, SIZES[::2])],
    ids=["empty", "mesh", "crowd"],
)
async def test_every_view_at_every_size(mesh: object, sizes: tuple[tuple[int, int], ...]) -> None:
    app = console(mesh())  # type: ignore[operator]
    async with app.run_test(size=(80, 24)) as pilot:
        for name, _ in frame.VIEWS:
            app.action_view(name)
            for size in sizes:
                await pilot.resize_terminal(*size)
        assert app.is_running


async def test_starts_in_the_smallest_terminal_and_grows() -> None:
    app = console()
    async with app.run_test(size=(1, 1)) as pilot:
        await settle(pilot)
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "a100-1>4090-2" in text_of(app)


@pytest.mark.slow
async def test_resizing_and_switching_while_it_streams() -> None:
    app = console()
    source = app.source
    assert isinstance(source, canned.CannedSource)
    source.words = [f"word{i} " for i in range(150)]
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await press(pilot, "6", *"hello", "enter")
        for size in (*SIZES, SIZES[0], SIZES[-1]):
            await pilot.resize_terminal(*size)
        await wait_for(lambda: lane(app).turns and lane(app).turns[-1].finish, pilot)
        assert lane(app).turns[-1].answer == "".join(source.words)
