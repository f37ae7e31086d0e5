"""The decision log on disk: lines that replay reads, a ring that stays in its bounds, a disk that fails."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from daemons.tracker.__main__ import read_settings
from daemons.tracker.decisions import MAX_WAITING, DecisionLog, before
from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Plan, Planner
from meshnet.domain.decision_log import DecisionRow, replay
from meshnet.domain.errors import StartError
from meshnet.domain.routing import Outcome, RoutingConfig
from tests.tracker.running import MODEL, claim
from tests.tracker.test_fleet import ManualClock

MIB = 1024 * 1024


def decisions(log: DecisionLog, n: int) -> None:
    """So many requests on a mesh of two routes, each with its end."""
    clock = ManualClock()
    fleet = Fleet(clock)
    planner = Planner(fleet, RoutingConfig(policy="random"), Random(1), clock, log=log.add)
    for number, shard in enumerate([(0, 14), (15, 29), (0, 29)], 1):
        fleet.register(claim(number, *shard))
    for _ in range(n):
        clock.time += 0.1
        plan = planner.plan(MODEL)
        planner.observe(ended(plan, clock.time), plan)


def ended(plan: Plan, now: float) -> Outcome:
    route = plan.decision.route
    seconds = float(len(route.hops))
    return Outcome(route.model_key, route, route.signature, plan.epoch, "ok", now, now + 0.1, now + seconds, 20)


def rows_of(*paths: Path) -> list[DecisionRow]:
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    return [msgspec.json.decode(line, type=DecisionRow) for line in lines]


async def test_lines_hold_candidates_propensity_and_outcome_and_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tracker.decisions.jsonl"
    log = DecisionLog(path, "boot1", MIB)
    decisions(log, 60)
    await log.close()
    rows = rows_of(path)
    assert len(rows) == 60 and {row.boot for row in rows} == {"boot1"}
    assert {len(row.candidates) for row in rows} == {3} and {round(row.propensity, 9) for row in rows} == {0.333333333}
    assert replay(rows, "greedy", RoutingConfig()).tokens_per_s > replay(rows, "random", RoutingConfig()).tokens_per_s


async def test_the_ring_turns_within_its_bytes(tmp_path: Path) -> None:
    path, limit = tmp_path / "tracker.decisions.jsonl", 64 * 1024
    log = DecisionLog(path, "b", limit)
    for _ in range(20):
        decisions(log, 10)
        await log.flush()
    await log.close()
    assert path.stat().st_size + before(path).stat().st_size <= limit
    kept = rows_of(before(path), path)
    assert 20 < len(kept) < 200 and log.lost == 0


async def test_a_disk_that_fails_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    log = DecisionLog(tmp_path / "file" / "tracker.decisions.jsonl", "b", MIB)
    decisions(log, 3)
    await log.close()
    assert log.lost == 3


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "x", "b", MIB)
    decisions(log, 1)
    for _ in range(MAX_WAITING):
        log.add(*_one())
    assert log.lost == 1
    await log.close()


def _one() -> tuple[Plan, Outcome]:
    clock = ManualClock()
    fleet = Fleet(clock)
    fleet.register(claim(1, 0, 29))
    plan = Planner(fleet, RoutingConfig(), Random(1), clock).plan(MODEL)
    return plan, ended(plan, 0.0)


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--route-explore-share", "-0.1", "from 0 to 1"),
        ("--route-weight-alpha", "nan", "from 0 to 1000"),
        ("--route-stats-half-life", "0.5", "from 1 to 604800"),
        ("--route-policy", "best", "choose one of adr"),
    ],
)
def test_a_knob_out_of_its_range_is_refused_at_start(flag: str, value: str, says: str) -> None:
    with pytest.raises(StartError, match=says):
        read_settings([flag, value])


def test_min_sample_tokens_come_from_the_environment_and_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = tmp_path / "mesh.toml"
    toml.write_text("[tracker]\nroute_min_sample_tokens = 4\nroute_weight_alpha = 8.0\nroute_policy = 'hop'\n")
    settings = read_settings(["--config", str(toml)]).routing()
    assert (settings.min_sample_tokens, settings.weight_alpha, settings.policy) == (4, 8.0, "hop")
    monkeypatch.setenv("MESHNET_ROUTE_MIN_SAMPLE_TOKENS", "16")
    monkeypatch.setenv("MESHNET_ROUTE_EXPLORE_SHARE", "0.05")
    settings = read_settings(["--config", str(toml), "--route-weight-alpha", "2"]).routing()
    assert (settings.min_sample_tokens, settings.explore_share, settings.weight_alpha) == (16, 0.05, 2.0)
    monkeypatch.setenv("MESHNET_ROUTE_EXPLORE_SHARE", "7")
    with pytest.raises(StartError, match="from 0 to 1"):
        read_settings([])
