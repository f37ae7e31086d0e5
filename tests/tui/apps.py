"""Consoles for tests: canned source, standing clocks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from meshnet.wire.routing import EventMessage
from meshnet.wire.status import Snapshot
from tests.tui import canned
from tui.app import ConsoleApp
from tui.settings import Settings
from tui.views.table_view import TableView
from tui.widgets.lane import Lane


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def console(
    snapshot: Snapshot | None = None,
    events: Sequence[EventMessage] | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> ConsoleApp:
    source = canned.CannedSource(snapshot or canned.mesh(), canned.mesh_events() if events is None else events)
    chosen = {"theme": "meshnet", "ascii": False, "tracker": source.url} | settings
    return ConsoleApp(source, Settings(**chosen), clock=clock or Clock(1000.0), wall=Clock(canned.NOON), rng=Random(7))  # type: ignore[arg-type]


def table_view(app: ConsoleApp) -> TableView:
    assert app.main is not None
    view = app.main.active
    assert isinstance(view, TableView)
    return view


def lane(app: ConsoleApp, name: str = "a") -> Lane:
    assert app.main is not None
    return app.main.query_one(f"#lane-{name}", Lane)
