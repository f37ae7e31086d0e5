from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.routes import Hop, Route
from meshnet.domain.routing import Outcome, TopologyChange
from meshnet.domain.routing_stats import MAX_ARMS, PRUNE_AFTER_S, Reputation, RouteStatsStore, TopologyEpochs

MODEL = ModelKey("m")
ROUTE = Route(MODEL, Revision("r"), "float32", 10, (Hop(NodeId("a.0-9"), "", 0, 9),))
ARM = ROUTE.signature
NOT_SPEEDS = [math.nan, math.inf, -math.inf, 0, 0.0, -1.0, True, False, "8", None, 10**400]


def ok(tokens: int = 100, seconds: float = 10.0, at: float = 0.0, epoch: int = 0, ttft: float = 1.0) -> Outcome:
    """Finished at ``at``."""
    start = at - seconds
    return Outcome(MODEL, ROUTE, ARM, epoch, "ok", start, start + ttft, at, tokens, prompt_tokens=20)


def sampled(*stamps: float, tokens: int = 100, seconds: float = 10.0) -> RouteStatsStore:
    store = RouteStatsStore()
    for at in stamps:
        assert store.record(MODEL, ARM, tokens, seconds, at, 0)
    return store


def test_first_sample_is_the_value():
    arm = sampled(5.0).arm(MODEL, ARM, 5.0)
    assert (arm.tps, arm.mass, arm.samples, arm.status, arm.age_s) == (10.0, 1.0, 1, "proven", 0.0)


def test_unknown_arm_is_unsampled():
    assert RouteStatsStore().arm(MODEL, ARM, 0.0).status == "unsampled"


@given(st.floats(0, 1e6), st.floats(10, 10_000))
def test_mass_halves_exactly_with_each_half_life(now, half_life_s):
    store = RouteStatsStore(half_life_s)
    store.record(MODEL, ARM, 100, 10.0, 0.0, 0)
    assert store.arm(MODEL, ARM, half_life_s).mass == 0.5
    assert store.arm(MODEL, ARM, now).mass == 0.5 ** (now / half_life_s)


def test_mass_of_one_half_is_still_proven_and_less_is_decayed():
    store = sampled(0.0)
    assert store.arm(MODEL, ARM, 600.0).status == "proven"
    arm = store.arm(MODEL, ARM, 600.001)
    assert (arm.status, arm.tps) == ("decayed", 10.0)


def test_a_steady_rate_tends_to_its_mass():
    # Geometric series: 1 / (1 - 0.5 ** (10 / 600)) = 87.06 samples at one per ten seconds.
    store = sampled(*(10.0 * i for i in range(1000)))
    assert store.arm(MODEL, ARM, 9990.0).mass == pytest.approx(1 / (1 - 0.5 ** (10 / 600)), rel=1e-4)


@given(st.lists(st.tuples(st.integers(8, 1000), st.floats(0.1, 100), st.floats(0, 1e5)), min_size=1, max_size=20))
def test_value_stays_within_its_samples(samples):
    store = RouteStatsStore()
    speeds = []
    for tokens, seconds, at in samples:
        store.record(MODEL, ARM, tokens, seconds, at, 0)
        speeds.append(tokens / seconds)
    tps = store.arm(MODEL, ARM, 1e5).tps
    assert tps is not None and min(speeds) * (1 - 1e-9) <= tps <= max(speeds) * (1 + 1e-9)


@given(st.permutations([(8, 2.0), (100, 5.0), (50, 1.0)]))
def test_order_of_samples_with_one_stamp_does_not_matter(samples):
    store = RouteStatsStore()
    for tokens, seconds in samples:
        store.record(MODEL, ARM, tokens, seconds, 7.0, 0)
    assert store.arm(MODEL, ARM, 7.0).tps == pytest.approx((4 + 20 + 50) / 3)


def test_seven_tokens_are_refused_and_eight_count():
    store = RouteStatsStore()
    assert not store.record(MODEL, ARM, 7, 1.0, 0.0, 0)
    assert store.too_short == 1 and store.arm(MODEL, ARM, 0.0).status == "unsampled"
    assert store.record(MODEL, ARM, 8, 1.0, 0.0, 0)


@pytest.mark.parametrize("bad", NOT_SPEEDS)
def test_what_is_no_number_is_dropped_and_counted(bad):
    store = sampled(0.0)
    assert not store.record(MODEL, ARM, bad, 1.0, 0.0, 0)
    assert not store.record(MODEL, ARM, 100, bad, 0.0, 0)
    assert not store.merge(MODEL, ARM, bad, 1.0, 0.0)
    assert not store.merge(MODEL, ARM, 1.0, bad, 0.0)
    assert store.dropped == 4
    assert store.arm(MODEL, ARM, 0.0).tps == 10.0


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf])
def test_a_stamp_that_is_no_time_is_dropped(at):
    store = sampled(0.0)
    assert not store.record(MODEL, ARM, 100, 10.0, at, 0)
    assert store.arm(MODEL, ARM, 600.0).mass == 0.5


@pytest.mark.parametrize("back_s", [3600.0, 365 * 86_400.0])
def test_a_clock_that_steps_back_grows_nothing(back_s):
    store = sampled(1e9)
    assert store.arm(MODEL, ARM, 1e9 - back_s).mass == 1.0
    store.record(MODEL, ARM, 100, 10.0, 1e9 - back_s, 0)
    assert store.arm(MODEL, ARM, 1e9 - back_s).mass == 2.0
    assert store.arm(MODEL, ARM, 1e9 + 600.0).mass == 1.0


def test_a_topology_change_makes_samples_stale_but_keeps_their_value():
    store = sampled(0.0)
    store.on_topology(TopologyChange(MODEL, NodeId("b.0-9"), "join"))
    arm = store.arm(MODEL, ARM, 0.0)
    assert (arm.status, arm.tps) == ("stale", 10.0)


def test_a_late_sample_of_the_old_epoch_does_not_revive_a_stale_arm():
    store = sampled(0.0)
    store.epochs.bump(MODEL)
    store.observe(ok(at=1.0, epoch=0))
    assert store.arm(MODEL, ARM, 1.0).status == "stale"
    store.observe(ok(at=2.0, epoch=1))
    assert store.arm(MODEL, ARM, 2.0).status == "proven"


def test_another_models_topology_is_none_of_ours():
    store = sampled(0.0)
    store.epochs.bump("other")
    assert store.arm(MODEL, ARM, 0.0).status == "proven"


@pytest.mark.parametrize("kind", ["join", "leave", "shard"])
def test_epoch_rises_by_one_with_each_change_of_its_model(kind):
    store = RouteStatsStore()
    for expected in (1, 2):
        store.on_topology(TopologyChange(MODEL, NodeId("b.0-9"), kind))
        assert (store.epochs.epoch(MODEL), store.epochs.epoch("other")) == (expected, 0)


def test_epoch_can_be_raised_but_never_lowered():
    epochs = TopologyEpochs()
    epochs.raise_to(MODEL, 5)
    epochs.raise_to(MODEL, 3)
    assert epochs.epoch(MODEL) == 5


@pytest.mark.parametrize("status", ["failed", "cancelled", "rerouted"])
def test_only_whole_answers_are_speed_samples(status):
    store = RouteStatsStore()
    assert not store.observe(replace(ok(), status=status))
    assert store.arm(MODEL, ARM, 0.0).tps is None


@pytest.mark.parametrize("status", ["cancelled", "rerouted"])
def test_cancelled_and_rerouted_calls_are_no_failures_either(status):
    store = RouteStatsStore()
    store.observe(replace(ok(), status=status))
    assert store.arm(MODEL, ARM, 0.0).success_share == 1.0 and len(store) == 0


def test_a_route_that_fails_half_its_calls_tends_to_half():
    store = RouteStatsStore()
    for at in range(400):
        store.observe(replace(ok(at=float(at)), status="failed" if at % 2 else "ok"))
    arm = store.arm(MODEL, ARM, 400.0)
    assert arm.success_share == pytest.approx(0.5, abs=0.01)
    assert arm.failures == 200 and arm.tps == pytest.approx(10.0)


def test_ttft_and_decode_are_ratios_of_sums():
    store = RouteStatsStore()
    store.observe(ok(tokens=11, seconds=3.0, ttft=1.0))
    store.observe(ok(tokens=101, seconds=33.0, ttft=3.0))
    arm = store.arm(MODEL, ARM, 0.0)
    assert arm.ttft_s_per_prompt_token == pytest.approx((1 + 3) / 40)
    assert arm.decode_s_per_token == pytest.approx((2 + 30) / (10 + 100))


def test_merge_is_a_mean_weighted_by_mass_at_the_later_stamp():
    ours, theirs = sampled(600.0), sampled(0.0, tokens=400)
    triple = theirs.triple(MODEL, ARM)
    assert triple == (40.0, 1.0, 0.0)
    assert ours.merge(MODEL, ARM, *triple)
    arm = ours.arm(MODEL, ARM, 600.0)
    assert (arm.mass, arm.tps) == (1.5, pytest.approx((10 + 0.5 * 40) / 1.5))


def test_merge_gives_the_same_whoever_is_told():
    left, right = sampled(600.0), sampled(0.0, tokens=400)
    left_triple, right_triple = left.triple(MODEL, ARM), right.triple(MODEL, ARM)
    assert left_triple and right_triple
    left.merge(MODEL, ARM, *right_triple)
    right.merge(MODEL, ARM, *left_triple)
    assert left.arm(MODEL, ARM, 900.0).mass == pytest.approx(right.arm(MODEL, ARM, 900.0).mass)
    assert left.arm(MODEL, ARM, 900.0).tps == pytest.approx(right.arm(MODEL, ARM, 900.0).tps)


def test_arms_without_news_for_a_day_are_forgotten():
    store = sampled(0.0)
    assert store.prune(PRUNE_AFTER_S) == 0
    assert store.prune(PRUNE_AFTER_S + 1) == 1 and len(store) == 0


def test_memory_is_bounded_and_the_newest_stay():
    store = RouteStatsStore()
    for i in range(MAX_ARMS + 5):
        store.record(MODEL, f"arm{i}", 100, 1.0, float(i), 0)
    assert len(store) <= MAX_ARMS
    assert store.arm(MODEL, f"arm{MAX_ARMS + 4}", 0.0).samples == 1


def test_reputation_starts_at_one_falls_with_failures_and_returns():
    reputation = Reputation(half_life_s=600.0)
    assert reputation.value("w", 0.0) == 1.0
    reputation.observe("w", False, 0.0)
    assert reputation.value("w", 0.0) == pytest.approx(2 / 3)
    assert reputation.value("w", 6000.0) > 0.999
    assert reputation.value("other", 0.0) == 1.0


@given(st.lists(st.tuples(st.booleans(), st.floats(-1e6, 1e6)), max_size=30), st.floats(-1e6, 1e6))
def test_reputation_stays_within_zero_and_one(events, now):
    reputation = Reputation(half_life_s=600.0)
    for succeeded, at in events:
        reputation.observe("w", succeeded, at)
    assert 0.0 <= reputation.value("w", now) <= 1.0 + 1e-12


def test_reputation_forgets_the_silent():
    reputation = Reputation(half_life_s=1e9)
    reputation.observe("w", False, 0.0)
    reputation.forget(PRUNE_AFTER_S + 1)
    assert reputation.value("w", PRUNE_AFTER_S + 1) == 1.0


@given(st.lists(st.tuples(st.floats(0.1, 1000), st.floats(0, 2000)), min_size=2, max_size=20))
def test_spread_is_the_deviation_of_the_samples_as_they_weigh_now(samples):
    store, now = RouteStatsStore(), 0.0
    weighed: list[tuple[float, float]] = []
    for tps, later_s in samples:
        now += later_s
        store.record(MODEL, ARM, 100, 100 / tps, now, 0)
        weighed.append((tps, now))
    weights = [0.5 ** ((now - at) / 600.0) for _, at in weighed]
    mean = sum(w * tps for w, (tps, _) in zip(weights, weighed, strict=True)) / sum(weights)
    variance = sum(w * (tps - mean) ** 2 for w, (tps, _) in zip(weights, weighed, strict=True)) / sum(weights)
    assert store.arm(MODEL, ARM, now).spread_tps == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)


def test_one_sample_has_no_spread_and_an_absurd_one_breaks_none():
    assert sampled(0.0).arm(MODEL, ARM, 0.0).spread_tps is None
    store = sampled(0.0)
    store.record(MODEL, ARM, 100, 1e-200, 1.0, 0)
    assert store.arm(MODEL, ARM, 1.0).spread_tps is None
