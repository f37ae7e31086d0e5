from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from meshnet.domain.candidates import Candidate
from meshnet.domain.decision_log import DecisionRow, decision_row, estimate, replay
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.policies import make_policy
from meshnet.domain.routes import Hop, Route
from meshnet.domain.routing import Outcome, PolicyName, RoutingConfig

MODEL = ModelKey("m")
SPEEDS = {"fast": 40.0, "slow": 10.0}
CONFIG = RoutingConfig()


def candidate(name: str, url: str = "", tail_layers: float = 0.0) -> Candidate:
    route = Route(MODEL, Revision("r"), "float32", 10, (Hop(NodeId(name), url, 0, 9, tail_layers=tail_layers),))
    return Candidate(route, route.signature, 10.0, (0,), (1.0,), (0.01,))


def log(policy_name: PolicyName, n: int, seed: int = 1, **slow: Any) -> list[DecisionRow]:
    """What a tracker under this policy would have written: one call after the other on two routes."""
    policy, rng, rows, now = make_policy(policy_name, CONFIG), Random(seed), list[DecisionRow](), 0.0
    arms = [candidate("fast"), candidate("slow", **slow)]
    for _ in range(n):
        decision = policy.choose(arms, now, rng)
        seconds = 100 / SPEEDS[decision.route.head.node_id] * rng.uniform(0.9, 1.1)
        end = now + seconds
        outcome = Outcome(MODEL, decision.route, decision.signature, 0, "ok", now, now, end, 101, 10, (), (0,), (0.01,))
        policy.observe(outcome)
        rows.append(decision_row(decision, arms, outcome))
        now = end
    return rows


def earned(rows: list[DecisionRow]) -> float:
    return sum(row.reward_tps for row in rows) / len(rows)


@pytest.mark.parametrize("target", ["random", "adr", "hop", "eps", "greedy"])
def test_replay_of_a_random_log_foretells_what_the_policy_does_earn(target):
    found = replay(log("random", 600), target, CONFIG)
    truth = earned(log(target, 600, seed=2))
    assert found.low - 1.5 <= truth <= found.high + 1.5
    assert found.low <= found.tokens_per_s <= found.high


def test_replay_of_its_own_log_is_what_was_earned():
    rows = log("random", 300)
    found = replay(rows, "random", CONFIG)
    assert found.tokens_per_s == pytest.approx(earned(rows)) == pytest.approx(found.logged_tokens_per_s)
    assert found.effective_rows == pytest.approx(300) and found.rows == 300


@pytest.mark.parametrize("slow", [{"url": "relay://192.0.2.9:7091/bbbbbbbb"}, {"tail_layers": 30.0}])
def test_a_hop_is_replayed_as_it_was(slow):
    found = replay(log("hop", 60, **slow), "hop", CONFIG)
    assert found.effective_rows == pytest.approx(60), "every choice is as likely as it was"


def test_hop_would_have_earned_more_than_random():
    found = replay(log("random", 400), "hop", CONFIG)
    assert found.low > found.logged_tokens_per_s


def test_replay_is_pure():
    rows = log("random", 100)
    assert replay(rows, "hop", CONFIG) == replay(rows[::-1], "hop", CONFIG)


def test_rows_no_dice_chose_or_that_ended_otherwise_are_left_out():
    rows = log("random", 50)
    noise = [
        replace(rows[0], mode="pinned"),
        replace(rows[1], mode="greedy-fallback"),
        replace(rows[2], status="cancelled"),
        replace(rows[3], status="rerouted"),
        replace(rows[4], propensity=0.0),
        replace(rows[5], propensity=math.nan),
        replace(rows[6], now=math.nan),
        replace(rows[7], signature="m | gone[0-9]"),
        replace(rows[8], candidates=(replace(rows[8].candidates[0], prior_tps=math.nan), *rows[8].candidates[1:])),
    ]
    assert replay(rows + noise, "hop", CONFIG) == replay(rows, "hop", CONFIG)


def test_a_failure_earns_nothing_but_counts():
    rows = log("random", 50)
    failed = [replace(row, status="failed") for row in rows]
    assert replay(failed, "random", CONFIG).tokens_per_s == 0.0


def test_an_empty_or_foreign_log_says_that_nothing_can_be_estimated():
    with pytest.raises(InvalidRequest, match="nothing to estimate"):
        replay([], "hop", CONFIG)
    with pytest.raises(InvalidRequest, match="route policy 'best'"):
        replay(log("random", 3), "best", CONFIG)


def test_interval_narrows_with_rows():
    rng = Random(1)
    rewards = [rng.gauss(10, 2) for _ in range(1600)]
    wide, narrow = estimate([1.0] * 100, rewards[:100], "x"), estimate([1.0] * 1600, rewards, "x")
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(4, rel=0.3)
    assert narrow.low < 10 < narrow.high


def test_a_row_is_one_line_of_json_and_comes_back():
    row = log("adr", 3)[-1]
    line = msgspec.json.encode(row)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=DecisionRow) == row
