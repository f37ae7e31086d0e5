"""The pictures that matter: every view at both sizes, and the meshes that break layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from textual.pilot import Pilot

from meshnet.domain.errors import Unreachable
from meshnet.wire.status import Snapshot
from tests.tui import canned
from tests.tui.apps import Clock, console
from tests.tui.rest import console_of, poll, press, settle
from tui.app import ConsoleApp
from tui.source import ChatAsk

SMALL, LARGE = (80, 24), (120, 40)


@dataclass(frozen=True)
class Picture:
    """``keys`` are pressed after the first poll; ``freeze`` then makes the tracker fall silent."""

    name: str
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    mesh: Callable[[], Snapshot] = canned.mesh
    freeze: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    ask: tuple[str, ...] = ()
    """Questions typed into chat, one after the other."""

    def app(self) -> ConsoleApp:
        clock = Clock(1000.0)
        app = console(self.mesh(), clock=clock, **self.settings)

        def word_takes_time(ask: ChatAsk, index: int) -> None:
            """Each answer has a time of its own: of two at once neither depends on when the other's words come."""
            clock.now = 1000.0 + (index + 1) / (31.9 if ask.route else 44.1)

        app.source.on_word = word_takes_time  # type: ignore[attr-defined]
        return app

    async def prepare(self, pilot: Pilot[None]) -> None:
        await settle(pilot)
        for key in self.keys:
            await press(pilot, key)
            await settle(pilot)
        for question in self.ask:
            await press(pilot, *question, "enter")
            await settle(pilot)
            await poll(pilot)
        if self.freeze:
            await fall_silent(pilot)


async def fall_silent(pilot: Pilot[None]) -> None:
    """The tracker stops answering and 15 seconds pass."""
    app = console_of(pilot)
    app.source.failure = Unreachable("tracker at http://gw1:7070 is not reachable")  # type: ignore[attr-defined]
    await app.poller.tick()
    app.clock.now += 15  # type: ignore[attr-defined]
    app.redraw()
    await settle(pilot)


VIEW_KEYS = (
    ("routing", ()), ("calls", ("2",)), ("nodes", ("3",)), ("layers", ("4",)), ("models", ("5",)), ("chat", ("6",)),
    ("events", ("7",)),
)  # fmt: skip

PICTURES: tuple[Picture, ...] = (
    *(Picture(f"{name}-{size[0]}", size, keys) for name, keys in VIEW_KEYS for size in (SMALL, LARGE)),
    Picture("frozen-80", SMALL, freeze=True),
    Picture("empty-80", SMALL, mesh=canned.empty),
    Picture("one-node-80", SMALL, ("4",), mesh=canned.one_node),
    Picture("crowded-120", LARGE, mesh=canned.crowd),
    Picture("crowded-layers-80", SMALL, ("4",), mesh=canned.crowd),
    Picture("no-color-80", SMALL, settings={"theme": "ansi-dark", "ascii": True}),
    Picture("details-80", SMALL, ("2", "down", "down", "down", "enter")),
    Picture("help-80", SMALL, ("question_mark",)),
    Picture("copy-80", SMALL, ("down", "down", "y")),
    Picture("filter-80", SMALL, ("slash", "3", "0", "9", "0")),
    Picture("tiny-40", (40, 10)),
    Picture("chat-answered-120", LARGE, ("down", "down", "c"), ask=("hi",)),
    Picture("race-120", LARGE, ("down", "down", "b"), ask=("hi",)),
)
