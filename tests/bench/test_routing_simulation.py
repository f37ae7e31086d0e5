"""The routing benchmark, small: the whole of it is ``python -m meshnet.bench routing``."""

from __future__ import annotations

import json

import pytest

from meshnet.bench import routing
from meshnet.bench.simulation import N_LAYERS, make_world
from meshnet.bench.simulation_players import EXTRA_PLAYERS, PLAYER_NAMES
from meshnet.bench.simulation_run import play
from meshnet.bench.simulation_speed import speeds
from meshnet.domain.candidates import enumerate_routes

SHORT_S = 900.0


def percent(rows: list[routing.Row]) -> dict[str, float]:
    return {str(row["policy"]): float(row["oracle_percent"]) for row in rows}


@pytest.mark.parametrize("scenario", routing.SCENARIOS)
def test_worlds_are_the_same_for_the_same_seed_and_can_be_served(scenario):
    world = make_world(scenario, 0.2, 1, SHORT_S)
    assert world == make_world(scenario, 0.2, 1, SHORT_S)
    assert world != make_world(scenario, 0.2, 2, SHORT_S)
    for at in range(0, int(SHORT_S), 150):
        present = [n for i, n in enumerate(world.nodes) if not world.is_away(i, float(at))]
        assert enumerate_routes(present, present[0].model_key)
    assert all(node.shard.end < N_LAYERS for node in world.nodes)


def test_scenarios_hold_the_trouble_they_are_named_for():
    abrupt = make_world("abrupt", 0.2, 1, SHORT_S)
    assert abrupt.slow_node is not None
    calm, slow, after = (abrupt.true_layer_s(abrupt.slow_node, at) for at in (100.0, 450.0, 700.0))
    assert slow == pytest.approx(5 * calm) and after == calm
    failing = make_world("failing-hop", 0.2, 1, SHORT_S)
    assert failing.failing_node is not None and failing.failure_share(failing.failing_node) == 0.3
    spread = make_world("spread-60x", 0.2, 1, SHORT_S).layer_s
    assert max(spread) / min(spread) > 10
    assert {r.tokens for r in make_world("lengths", 0.2, 1, SHORT_S).requests} == {8, 800}
    assert make_world("churn", 0.2, 1, SHORT_S).absences and make_world("drift", 0.2, 1, SHORT_S).drift


@pytest.mark.parametrize("player", [*PLAYER_NAMES, *EXTRA_PLAYERS])
def test_every_player_finishes_and_plays_the_same_twice(player):
    world = make_world("churn", 0.1, 3, 700.0)
    score = play(world, player, 3)
    assert score == play(world, player, 3)
    assert score.tokens_per_s > 0 and score.p95_s_per_token > 0 and 0 <= score.slow_share <= 1


def test_hop_comes_near_the_oracle_and_random_does_not():
    rows = routing.simulate([("stationary", 0.2)], ("hop", "random"), n_seeds=3, duration_s=1200.0)
    shares = percent(rows)
    assert shares["hop"] >= 92.0
    assert shares["random"] < shares["hop"] - 5


def test_hop_follows_a_change_and_keeps_off_slow_routes():
    rows = routing.simulate([("abrupt", 0.2), ("spread-60x", 0.2)], ("hop",), n_seeds=2, duration_s=1200.0)
    assert float(rows[0]["oracle_percent"]) >= 87.0
    assert float(rows[1]["slow_share"]) <= 0.05


def test_the_oracle_is_a_hundred_percent_of_itself():
    [row] = routing.simulate([("stationary", 0.1)], ("oracle",), n_seeds=2, duration_s=600.0)
    assert (row["oracle_percent"], row["ci95"]) == (100.0, 0.0)


def test_json_rows_have_the_promised_fields(capsys, tmp_path):
    out = tmp_path / "rows.jsonl"
    chosen = ["--scenario", "liar", "--load", "0.05", "--policy", "adr"]
    size = ["--seeds", "2", "--duration", "300", "--processes", "1"]
    assert routing.main(["--json", *chosen, *size, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed == out.read_text(encoding="utf-8")
    [row] = [json.loads(line) for line in printed.splitlines()]
    assert list(row) == ["scenario", "policy", "load", "oracle_percent", "ci95", "p95_s_per_token", "slow_share"]
    assert (row["scenario"], row["policy"], row["load"]) == ("liar", "adr", 0.05)


def test_table_has_one_part_a_scenario(capsys):
    rows = routing.simulate([("liar", 0.05), ("drift", 0.05)], ("random",), n_seeds=2, duration_s=300.0)
    text = routing.table(rows)
    assert text.count("| random |") == 2 and "**liar**" in text and "**drift**" in text


def test_speeds_are_measured_for_every_policy_and_both_enumerations():
    rows = {str(row["measure"]): row for row in speeds(repeats=3, sizes=(20,))}
    assert {"choose adr", "choose hop", "enumerate adr, 20 nodes", "enumerate hop, 20 nodes"} <= set(rows)
    assert "table adr, 200 arms" in rows
    assert all(0 < float(row["p50_us"]) <= float(row["p99_us"]) for row in rows.values())
