"""``GET /v1/stats``: demand per model, of this tracker alone and with its peers; how peers and database fare."""

from __future__ import annotations

from collections.abc import Sequence

from daemons.tracker.keeping import Keeping
from meshnet.domain.demand import DemandStats
from meshnet.domain.rolling import PER_MINUTE
from meshnet.wire.demand import ModelStats, PeerStats, StatsResponse


def stats(
    demand: DemandStats, started_wall: float, now_wall: float, peers: Sequence[PeerStats], keeping: Keeping
) -> StatsResponse:
    own, combined = demand.get_own_stats(now_wall), demand.get_combined_stats(now_wall)
    minutes = _minutes(demand, now_wall)
    return StatsResponse(
        tracker_id=demand.tracker_id,
        generation=demand.generation,
        models=tuple(
            ModelStats(
                model_key=model,
                **{name: own.get(model, {}).get(name, 0.0) for name in _RPM},
                **{f"combined_{name}": combined[model][name] for name in _RPM},
                rpm_since_start=demand.rpm_since(model, started_wall, now_wall),
                minutes=minutes.get(model, ()),
            )
            for model in sorted(combined)
        ),
        peers=tuple(peers),
        database=keeping.status,
        unsaved_s=round(keeping.unsaved_s, 3),
    )


_RPM = ("rpm_last_hour", "rpm_last_day", "rpm_last_month")


def _minutes(demand: DemandStats, now_wall: float) -> dict[str, tuple[int, ...]]:
    """Own counts of the last 60 minutes by model, oldest first."""
    counts: dict[str, dict[int, int]] = {}
    for model, window, _, index, count in demand.export_rows(now_wall):
        if window == PER_MINUTE.name:
            counts.setdefault(model, {})[index] = count
    newest = PER_MINUTE.index(now_wall)
    wanted = range(newest - PER_MINUTE.buckets + 1, newest + 1)
    return {model: tuple(by_index.get(index, 0) for index in wanted) for model, by_index in counts.items()}
