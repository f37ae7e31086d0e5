"""One poll of a whole mesh through the typed client: the single input of the console and of ``meshnet status``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from meshnet.domain.errors import MeshnetError, NotFound
from meshnet.wire.demand import StatsResponse
from meshnet.wire.messages import CoverageResponse, Health, ModelsResponse, NodesResponse
from meshnet.wire.routing import CallsResponse, RoutingResponse
from meshnet.wire.status import Snapshot, TrackerMessage

T = TypeVar("T")

CALLS_SHOWN = 200
"""Newest calls in a snapshot: the call wall's depth. Each is about 1 kB of JSON a poll."""


class TrackerReads(Protocol):
    """What a poll asks of a tracker; ``meshnet.client.tracker`` fulfils it."""

    async def health(self) -> Health: ...
    async def nodes(self) -> NodesResponse: ...
    async def models(self) -> ModelsResponse: ...
    async def coverage(self) -> CoverageResponse: ...
    async def routing(self) -> RoutingResponse: ...
    async def stats(self) -> StatsResponse: ...
    async def calls(self, *, limit: int = CALLS_SHOWN) -> CallsResponse: ...


async def take_snapshot(client: TrackerReads, url: str, now: float, calls: int = CALLS_SHOWN) -> Snapshot:
    """Ask everything at once. ``now`` is Unix seconds, for display.

    The nodes must be had: their failure is raised. A part that this tracker does not serve (404), or fails to, is
    empty and named in ``unserved``.
    """
    unserved: list[str] = []
    (nodes, health, models, coverage), (routing, stats, wall) = await asyncio.gather(
        asyncio.gather(
            client.nodes(),
            _part("healthz", client.health(), unserved),
            _part("models", client.models(), unserved),
            _part("coverage", client.coverage(), unserved),
        ),
        asyncio.gather(
            _part("routing", client.routing(), unserved),
            _part("stats", client.stats(), unserved),
            _part("calls", client.calls(limit=calls), unserved),
        ),
    )
    tracker = TrackerMessage(
        url=url,
        tracker_id=stats.tracker_id if stats else "",
        version=health.version if health else "",
        uptime_s=health.uptime_s if health else 0.0,
    )
    return Snapshot(
        taken_at=now,
        trackers=(tracker,),
        nodes=nodes.nodes,
        models=models.data if models else (),
        coverage=coverage.models if coverage else (),
        routing=routing,
        stats=stats,
        calls=wall.calls if wall else (),
        unserved=tuple(sorted(unserved)),
    )


async def _part(name: str, answer: Awaitable[T], unserved: list[str]) -> T | None:
    try:
        return await answer
    except NotFound:
        unserved.append(name)
    except MeshnetError as error:
        unserved.append(f"{name}: {error.code}")
    return None
