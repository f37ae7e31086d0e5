from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from meshnet.domain.candidates import HOP_LINK_S, RELAY_TRIP_S, Candidate
from meshnet.domain.hop_stats import LOAD_FACTOR, PRIOR_VARIANCE, HopStatsStore
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.routes import Hop, Route
from meshnet.domain.routing import HopTiming, Outcome

MODEL = ModelKey("m")
HALF_LIFE_S = 600.0


def candidate(nodes: str, layer_s: float = 0.01, loads: tuple[int, ...] = ()) -> Candidate:
    """One node a letter, two layers each."""
    hops = tuple(Hop(NodeId(n), "", 2 * i, 2 * i + 1) for i, n in enumerate(nodes))
    route = Route(MODEL, Revision("r"), "float32", 2 * len(nodes), hops)
    n = len(nodes)
    return Candidate(route, route.signature, 1.0, loads or (0,) * n, (1.0,) * n, (layer_s,) * n)


def outcome(
    over: Candidate,
    layer_s: dict[str, float],
    at: float = 0.0,
    link_s: float = 0.0,
    timed: bool = True,
    steps: int = 100,
) -> Outcome:
    per_token = {n: 2 * layer_s[n] for n in over.route.node_ids}
    token_s = sum(per_token.values()) + link_s * len(per_token)
    timings = tuple(HopTiming(NodeId(n), steps, s * steps) for n, s in per_token.items()) if timed else ()
    first = at - token_s * steps
    return Outcome(
        MODEL, over.route, over.signature, 0, "ok", first, first, at, steps + 1, 0, timings, over.loads, over.layer_s
    )


def test_before_any_sample_a_node_is_what_it_claims():
    store = HopStatsStore(HALF_LIFE_S)
    predicted = store.predict([candidate("ab", 0.01, loads=(0, 1)).work], 0.0)
    seconds = 2 * 0.01 + 2 * 0.01 * (1 + LOAD_FACTOR) + 2 * HOP_LINK_S
    assert predicted.seconds == pytest.approx([seconds])
    assert predicted.parts == [pytest.approx([0.02, 0.04])]
    assert predicted.variances == pytest.approx([PRIOR_VARIANCE * (0.02**2 + 0.04**2) / seconds**2])
    assert [store.variance(node_id, 0.0) for node_id in "ab"] == [PRIOR_VARIANCE, PRIOR_VARIANCE]


def test_hop_timings_teach_each_node_its_own_speed():
    store = HopStatsStore(HALF_LIFE_S)
    truth = {"a": 0.003, "b": 0.05}
    for at in range(8):
        store.observe(outcome(candidate("ab"), truth, float(at)))
    assert {n: store.layer_s(n, 1.0) for n in "ab"} == pytest.approx(truth, rel=0.01)
    assert store.samples("a") == 8 and len(store) == 2


def test_output_head_counts_as_work_and_not_as_slower_layers():
    """Learned as the tail of two, a node is predicted rightly alone: its output head is there once either way."""
    store = HopStatsStore(HALF_LIFE_S)
    hops = (Hop(NodeId("a"), "", 0, 1), Hop(NodeId("b"), "", 2, 3, tail_layers=2.0))
    route = Route(MODEL, Revision("r"), "float32", 4, hops)
    timings = (HopTiming(NodeId("a"), 100, 100 * 2 * 0.01), HopTiming(NodeId("b"), 100, 100 * (2 + 2) * 0.01))
    for at in range(8):
        store.observe(
            Outcome(MODEL, route, route.signature, 0, "ok", float(at), at + 0.1, at + 6.1, 101, 0, timings, (0, 0))
        )
    assert store.layer_s("b", 1.0) == pytest.approx(0.01, rel=0.01)
    alone = Route(MODEL, Revision("r"), "float32", 4, (Hop(NodeId("b"), "", 0, 3, tail_layers=2.0),))
    work = Candidate(alone, alone.signature, 1.0, (0,), (1.0,), (0.01,)).work
    assert store.predict([work], 8.0).parts == [pytest.approx([6 * 0.01], rel=0.01)]


def test_end_to_end_times_over_crossing_routes_tell_nodes_apart():
    store, rng = HopStatsStore(HALF_LIFE_S), Random(1)
    truth = {"a": 0.002, "b": 0.010, "c": 0.040, "d": 0.005}
    for at in range(200):
        over = candidate("".join(rng.sample("abcd", 2)))
        store.observe(outcome(over, truth, 3.0 * at, link_s=HOP_LINK_S, timed=False))
    for n, seconds in truth.items():
        assert store.layer_s(n, 1.0) == pytest.approx(seconds, rel=0.35)


def test_half_a_set_of_timings_falls_back_to_end_to_end():
    store = HopStatsStore(HALF_LIFE_S)
    full = outcome(candidate("ab"), {"a": 0.01, "b": 0.01})
    store.observe(
        Outcome(
            MODEL,
            full.route,
            full.signature,
            0,
            "ok",
            full.started_at,
            full.first_token_at,
            0.0,
            101,
            hop_timings=full.hop_timings[:1],
            claimed_layer_s=(0.01, 0.01),
        )
    )
    assert store.samples("a") == store.samples("b") == 1


def test_uncertainty_grows_while_nothing_is_measured_up_to_the_prior():
    store = HopStatsStore(HALF_LIFE_S)
    for at in range(5):
        store.observe(outcome(candidate("a"), {"a": 0.01}, float(at)))
    variances = [store.variance("a", at) for at in (4.0, 600.0, 6000.0, 1e9)]
    assert variances == sorted(variances) and variances[0] < 0.03
    assert variances[-1] == PRIOR_VARIANCE


def test_a_clock_that_steps_back_grows_no_certainty_and_no_error():
    store = HopStatsStore(HALF_LIFE_S)
    store.observe(outcome(candidate("a"), {"a": 0.01}, 1e6))
    before = store.predict([candidate("a").work], 1e6)
    assert store.predict([candidate("a").work], -1e6) == before


def test_a_change_is_believed_at_once():
    store = HopStatsStore(HALF_LIFE_S)
    for at in range(30):
        store.observe(outcome(candidate("a"), {"a": 0.01}, float(at)))
    store.observe(outcome(candidate("a"), {"a": 0.05}, 30.0))
    assert store.layer_s("a", 1.0) > 0.035


def test_short_answers_teach_less():
    long, short = HopStatsStore(HALF_LIFE_S), HopStatsStore(HALF_LIFE_S)
    for store, steps in ((long, 400), (short, 8)):
        store.observe(outcome(candidate("a"), {"a": 0.010}, 0.0))
        store.observe(outcome(candidate("a"), {"a": 0.013}, 1.0, steps=steps))
    assert long.layer_s("a", 1.0) > short.layer_s("a", 1.0) > 0.010


def test_load_factor_is_learned_from_busy_nodes():
    store, rng, truth = HopStatsStore(HALF_LIFE_S), Random(2), 0.25
    for at in range(400):
        load = rng.randrange(4)
        seconds = 0.01 * (1 + truth * load)
        store.observe(outcome(candidate("a", loads=(load,)), {"a": seconds}, float(at)))
    assert store.load_factor == pytest.approx(truth, abs=0.15)
    assert store.layer_s("a", 1.0) == pytest.approx(0.01, rel=0.15)


def test_links_are_learned_from_what_hops_do_not_explain():
    store = HopStatsStore(HALF_LIFE_S)
    for at in range(30):
        store.observe(outcome(candidate("ab"), {"a": 0.01, "b": 0.01}, float(at), link_s=0.03))
    assert store.link_s("a") == pytest.approx(0.03, rel=0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1"])
def test_timings_that_are_no_numbers_are_dropped_and_counted(bad):
    store = HopStatsStore(HALF_LIFE_S)
    good = outcome(candidate("a"), {"a": 0.01})
    for timing in (HopTiming(NodeId("a"), 10, bad), HopTiming(NodeId("a"), bad, 1.0)):
        store.observe(Outcome(MODEL, good.route, good.signature, 0, "ok", 0.0, None, 0.0, 101, hop_timings=(timing,)))
    assert store.dropped == 2
    assert len(store) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1"])
def test_a_wait_that_is_no_number_drops_the_timing_but_no_wait_is_fine(bad):
    store = HopStatsStore(HALF_LIFE_S)
    good = outcome(candidate("a"), {"a": 0.01})
    waits = (HopTiming(NodeId("a"), 10, 1.0, bad),)
    store.observe(Outcome(MODEL, good.route, good.signature, 0, "ok", 0.0, None, 0.0, 101, hop_timings=waits))
    assert store.dropped == 1
    store.observe(good)
    assert store.layer_s("a", 1.0) == pytest.approx(0.01)


def test_nodes_without_news_for_a_day_are_forgotten():
    store = HopStatsStore(HALF_LIFE_S)
    store.observe(outcome(candidate("a"), {"a": 0.01}))
    store.prune(86_400.0)
    assert len(store) == 1
    store.prune(86_401.0)
    assert len(store) == 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_change_that_no_single_sample_shows_is_followed_within_five_samples(factor):
    store, noise = HopStatsStore(HALF_LIFE_S), Random(5)
    for number in range(60):
        store.observe(outcome(candidate("a"), {"a": 0.01 * noise.uniform(0.9, 1.1)}, 3.0 * number, steps=11))
    before = store.layer_s("a", 1.0)
    for number in range(5):
        changed = 0.01 * factor * noise.uniform(0.9, 1.1)
        store.observe(outcome(candidate("a"), {"a": changed}, 200.0 + 3.0 * number, steps=11))
    assert before == pytest.approx(0.01, rel=0.1)
    assert store.layer_s("a", 1.0) == pytest.approx(0.01 * factor, rel=0.2)


def test_noise_alone_moves_a_settled_belief_little():
    store, noise = HopStatsStore(HALF_LIFE_S), Random(6)
    for number in range(400):
        store.observe(outcome(candidate("a"), {"a": 0.01 * noise.lognormvariate(0.0, 0.2)}, 3.0 * number))
        if number > 50:
            assert store.layer_s("a", 1.0) == pytest.approx(0.01, rel=0.25)


def test_a_relays_trip_is_expected_until_links_are_measured():
    store = HopStatsStore(HALF_LIFE_S)
    direct, relayed = candidate("ab"), candidate("ab")
    hops = tuple(replace(hop, url="relay://192.0.2.9:7091/bbbbbbbb") for hop in relayed.route.hops)
    relayed = replace(relayed, route=replace(relayed.route, hops=hops))

    def longer_s() -> float:
        [near], [far] = store.predict([direct.work], 0.0).seconds, store.predict([relayed.work], 0.0).seconds
        return far - near

    assert longer_s() == pytest.approx(2 * RELAY_TRIP_S)
    for at in range(20):
        store.observe(outcome(relayed, {"a": 0.01, "b": 0.01}, float(at), link_s=HOP_LINK_S))
    assert longer_s() < 0.2 * RELAY_TRIP_S, "what was measured weighs more"
    assert store.predict([relayed.work], 20.0).seconds == pytest.approx([0.04 + 2 * HOP_LINK_S], rel=0.15)
