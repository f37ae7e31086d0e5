"""One poll of a whole mesh, as `meshnet status --json` prints it and the console draws it."""

from __future__ import annotations

from msgspec import Struct

from meshnet.wire.demand import StatsResponse
from meshnet.wire.messages import CoverageModel, ModelMessage, NodeMessage
from meshnet.wire.routing import CallMessage, RoutingResponse


class TrackerMessage(Struct, frozen=True, kw_only=True):
    url: str
    tracker_id: str = ""
    version: str = ""
    uptime_s: float = 0.0
    live: bool = True


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything one poll learned. ``taken_at`` is Unix seconds at the client, for display; ages inside are the
    tracker's own. Parts that an old or degraded tracker does not serve are empty."""

    taken_at: float
    trackers: tuple[TrackerMessage, ...]
    nodes: tuple[NodeMessage, ...] = ()
    models: tuple[ModelMessage, ...] = ()
    coverage: tuple[CoverageModel, ...] = ()
    routing: RoutingResponse | None = None
    stats: StatsResponse | None = None
    calls: tuple[CallMessage, ...] = ()
    unserved: tuple[str, ...] = ()
    """Parts that this tracker does not serve (``routing``), or failed to (``calls: overloaded``)."""
