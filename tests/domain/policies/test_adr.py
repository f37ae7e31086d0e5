from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import NoRoute
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.policies import RoutingMemory, choose_route, make_policy
from meshnet.domain.routes import Hop, Route
from meshnet.domain.routing import Decision, Outcome, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import RouteStatsStore

MODEL = ModelKey("m")
GOLDEN = Path(__file__).parent / "adr_golden.txt"
"""One line an event: c(hoice) mode arm propensity, o(utcome) arm, t(opology). Rewrite it only with the record."""


def candidate(name: str, prior_tps: float = 1.0, load: int = 0) -> Candidate:
    route = Route(MODEL, Revision("r"), "float32", 10, (Hop(NodeId(name), "", 0, 9),))
    return Candidate(route, route.signature, prior_tps, (load,), (1.0,), (0.01,))


def learned(speeds: dict[str, float], now: float = 0.0, config: RoutingConfig | None = None) -> RouteStatsStore:
    store = RouteStatsStore((config or RoutingConfig()).stats_half_life_s)
    for name, tps in speeds.items():
        store.record(MODEL, candidate(name).signature, 1000, 1000 / tps, now, 0)
    return store


def shares(speeds: dict[str, float], config: RoutingConfig, draws: int = 4000) -> dict[str, float]:
    rng, store = Random(7), learned(speeds)
    arms = [candidate(name) for name in speeds]
    counts = Counter(choose_route(arms, store, config, 0.0, rng).route.head.node_id for _ in range(draws))
    return {name: counts[NodeId(name)] / draws for name in speeds}


def test_exploit_share_goes_as_tps():
    assert shares({"a": 60.0, "b": 40.0}, RoutingConfig(explore_share=0.0))["a"] == pytest.approx(0.6, abs=0.031)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 0.5), (2.0, 36 / 52), (200.0, 1.0), (1000.0, 1.0)])
def test_alpha_bends_the_split_and_never_overflows(alpha, expected):
    config = RoutingConfig(explore_share=0.0, weight_alpha=alpha)
    assert shares({"a": 60e3, "b": 40e3}, config)["a"] == pytest.approx(expected, abs=0.031)


def test_scouts_take_their_share_while_an_arm_is_unproven():
    rng, store = Random(3), learned({"a": 60.0, "b": 40.0})
    arms = [candidate("a"), candidate("b"), candidate("new")]
    modes = Counter(choose_route(arms, store, RoutingConfig(), 0.0, rng).mode for _ in range(4000))
    assert modes["scout"] / 4000 == pytest.approx(0.3, abs=0.029)


@pytest.mark.parametrize(("explore", "expected"), [(0.0, {"exploit"}), (1.0, {"scout"})])
def test_explore_share_of_nothing_and_of_everything(explore, expected):
    rng, store = Random(1), learned({"a": 60.0})
    config = RoutingConfig(explore_share=explore)
    arms = [candidate("a"), candidate("new")]
    assert {choose_route(arms, store, config, 0.0, rng).mode for _ in range(200)} == expected


def test_all_proven_never_scouts():
    rng, store = Random(1), learned({"a": 60.0, "b": 1.0})
    config = RoutingConfig(explore_share=1.0)
    assert choose_route([candidate("a"), candidate("b")], store, config, 0.0, rng).mode == "exploit"


def test_cold_start_takes_the_best_prior_without_dice():
    arms = [candidate("a", 1.0), candidate("b", 9.0), candidate("c", 9.0)]
    rng = Random(1)
    before = rng.getstate()
    decision = choose_route(arms, RouteStatsStore(), RoutingConfig(), 0.0, rng)
    assert (decision.route.head.node_id, decision.mode) == ("b", "scout")
    assert rng.getstate() == before
    assert decision.propensity == 1.0


def test_the_least_measured_is_scouted_first_then_the_best_prior_then_the_smaller_name():
    config = RoutingConfig(explore_share=1.0)
    store = learned({"proven": 10.0, "less": 1.0, "more": 1.0})
    store.record(MODEL, candidate("more").signature, 1000, 1000.0, 0.0, 0)
    store.epochs.bump(MODEL)
    store.record(MODEL, candidate("proven").signature, 1000, 100.0, 0.0, 1)
    arms = [candidate("proven"), candidate("more", 9.0), candidate("less", 1.0)]
    assert choose_route(arms, store, config, 0.0, Random(1)).route.head.node_id == "less"
    arms += [candidate("y", 3.0), candidate("x", 3.0), candidate("z", 2.0)]
    assert choose_route(arms, store, config, 0.0, Random(1)).route.head.node_id == "x"


def test_a_route_that_only_fails_is_not_scouted_for_ever():
    memory = RoutingMemory(RoutingConfig())
    policy = make_policy("adr", RoutingConfig(explore_share=1.0), memory)
    memory.arms.record(MODEL, candidate("proven").signature, 100, 10.0, 0.0, 0)
    broken = candidate("broken", 9.0)
    policy.observe(Outcome(MODEL, broken.route, broken.signature, 0, "failed", 0.0, None, 1.0, 0))
    arms = [candidate("proven"), broken, candidate("new", 1.0)]
    assert policy.choose(arms, 1.0, Random(1)).route.head.node_id == "new"


def test_failures_lower_the_exploit_share():
    store = learned({"a": 50.0, "b": 50.0})
    for _ in range(20):
        a = candidate("a")
        store.observe(Outcome(MODEL, a.route, a.signature, 0, "failed", 0.0, None, 0.0, 0))
    decision = choose_route([candidate("a"), candidate("b")], store, RoutingConfig(), 0.0, Random(1))
    assert decision.probabilities[candidate("a").signature] < 0.2


def test_no_candidate_is_no_route():
    with pytest.raises(NoRoute):
        choose_route([], RouteStatsStore(), RoutingConfig(), 0.0, Random(1))


names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@given(names, st.lists(st.floats(0.01, 1e6), min_size=8, max_size=8), st.floats(0, 1), st.floats(0, 8))
def test_probabilities_sum_to_one_and_scale_and_order_do_not_matter(chosen, speeds, explore, alpha):
    config = RoutingConfig(explore_share=explore, weight_alpha=alpha)
    # The first half is measured; priors differ, so that the next scout is the same whatever the order.
    measured = dict(zip(chosen[::2], speeds, strict=False))
    arms = [candidate(name, prior_tps=1.0 + ord(name)) for name in chosen]
    once = choose_route(arms, learned(measured), config, 0.0, Random(1))
    assert math.fsum(once.probabilities.values()) == pytest.approx(1.0)
    assert once.propensity > 0
    scaled = {name: tps * 1000 for name, tps in measured.items()}
    other = choose_route(arms[::-1], learned(scaled), config, 0.0, Random(1))
    assert other.probabilities == pytest.approx(once.probabilities)
    assert other.signature == once.signature


def test_draws_follow_the_logged_probabilities_over_eight_arms():
    speeds = {name: float(i + 1) for i, name in enumerate("abcdefgh")}
    store, rng, draws = learned(speeds), Random(11), 4000
    arms = [candidate(name) for name in speeds]
    counts: Counter[str] = Counter()
    probabilities = choose_route(arms, store, RoutingConfig(), 0.0, rng).probabilities
    for _ in range(draws):
        counts[choose_route(arms, store, RoutingConfig(), 0.0, rng).signature] += 1
    chi_square = sum((counts[s] - draws * p) ** 2 / (draws * p) for s, p in probabilities.items())
    assert chi_square < 31.8  # 7 degrees of freedom at p = 4e-5


def test_one_poisoned_arm_fails_nothing():
    store = learned({"a": 60.0, "b": 40.0})
    store.merge(MODEL, candidate("a").signature, math.nan, 1.0, 0.0)
    store.record(MODEL, candidate("b").signature, 100, math.inf, 0.0, 0)
    arms = [candidate("a"), candidate("b")]
    assert choose_route(arms, store, RoutingConfig(), 0.0, Random(1)).mode == "exploit"
    assert store.dropped == 2


def test_choosing_and_the_table_change_nothing():
    memory = RoutingMemory(RoutingConfig())
    policy = make_policy("adr", RoutingConfig(), memory)
    arms = [candidate("a"), candidate("b"), candidate("new")]
    for arm in arms[:2]:
        memory.arms.record(MODEL, arm.signature, 100, 10.0, 0.0, 0)
    once = policy.choose(arms, 1.0, Random(5))
    table = policy.table(arms, 1.0)
    assert policy.choose(arms, 1.0, Random(5)) == once
    assert policy.table(arms, 1.0) == table


def test_table_shows_speed_coefficient_share_and_status():
    memory = RoutingMemory(RoutingConfig())
    policy = make_policy("adr", RoutingConfig(), memory)
    arms = [candidate("a"), candidate("b"), candidate("new")]
    memory.arms.record(MODEL, arms[0].signature, 60, 1.0, 0.0, 0)
    memory.arms.record(MODEL, arms[1].signature, 40, 1.0, 0.0, 0)
    rows = policy.table(arms, 0.0)
    assert [row.status for row in rows] == ["proven", "proven", "unsampled"]
    assert [row.tps for row in rows] == [60.0, 40.0, None]
    assert [row.coefficient for row in rows] == [1.0, pytest.approx(2 / 3), None]
    assert [row.expected_share for row in rows] == pytest.approx([0.7 * 0.6, 0.7 * 0.4, 0.3])
    assert policy.table([], 0.0) == []


def test_expected_share_of_a_cold_start_is_the_best_priors():
    rows = make_policy("adr", RoutingConfig()).table([candidate("a", 1.0), candidate("b", 2.0)], 0.0)
    assert [row.expected_share for row in rows] == [0.0, 1.0]


def golden_trace() -> str:
    """1,000 events: choices, outcomes that come later, topology changes, a clock that runs unevenly."""
    dice, rng = Random(2021), Random(21)
    policy = make_policy("adr", RoutingConfig())
    arms = [candidate(name, prior_tps=5.0 + i) for i, name in enumerate("abcdefgh")]
    now, epoch, pending, lines = 0.0, 0, list[tuple[Decision, int]](), list[str]()
    while len(lines) < 1000:
        now += dice.expovariate(0.05)
        event = dice.random()
        if event < 0.55 or not pending:
            decision = policy.choose(arms[: dice.randrange(1, 9)], now, rng)
            pending.append((decision, epoch))
            lines.append(f"c {decision.mode} {decision.route.head.node_id} {decision.propensity:.9f}")
        elif event < 0.99:
            decision, chosen_epoch = pending.pop(dice.randrange(len(pending)))
            tokens = dice.randrange(4, 200)
            seconds = tokens / (2.0 + ord(decision.route.head.node_id) % 8) * dice.uniform(0.7, 1.3)
            status = dice.choice(["ok"] * 17 + ["failed", "cancelled", "rerouted"])
            outcome = Outcome(
                MODEL, decision.route, decision.signature, chosen_epoch, status, now - seconds, None, now, tokens
            )
            policy.observe(outcome)
            lines.append(f"o {status} {decision.route.head.node_id}")
        else:
            policy.on_topology(TopologyChange(MODEL, NodeId("x"), "join"))
            epoch += 1
            lines.append(f"t {epoch}")
    return "\n".join(lines) + "\n"


def test_golden_trace_is_the_same_twice_and_the_stored_one():
    trace = golden_trace()
    assert trace == golden_trace()
    assert trace == GOLDEN.read_text(encoding="utf-8")
    assert {line.split()[1] for line in trace.splitlines() if line[0] == "c"} == {"scout", "exploit"}


def test_the_busiest_arm_learns_from_its_own_epoch():
    """A route measured again after a change takes exploit traffic while the others are stale."""
    store = learned({"a": 60.0, "b": 40.0})
    store.epochs.bump(MODEL)
    a = candidate("a")
    store.observe(Outcome(MODEL, a.route, a.signature, 1, "ok", 0.0, 0.5, 2.0, 100))
    decision = choose_route([a, candidate("b")], store, RoutingConfig(explore_share=0.0), 2.0, Random(1))
    assert (decision.mode, decision.propensity) == ("exploit", 1.0)
