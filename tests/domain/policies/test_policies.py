"""What every policy must keep, and what each of those beyond the record does."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import InvalidRequest, NoRoute
from meshnet.domain.ids import ModelKey, NodeId, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.policies import Router, greedy_fallback, make_policy, pinned_decision, propose
from meshnet.domain.policies.arms import EPSILON
from meshnet.domain.routes import Hop, Route
from meshnet.domain.routing import POLICY_NAMES, HopTiming, Outcome, RoutingConfig, TopologyChange
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")


def candidate(*nodes: str, layer_s: float = 0.01, loads: tuple[int, ...] = (), reputation: float = 1.0) -> Candidate:
    """A route over these nodes, ten layers in equal parts."""
    part = 10 // len(nodes)
    hops = tuple(Hop(NodeId(n), "", i * part, (i + 1) * part - 1) for i, n in enumerate(nodes))
    route = Route(MODEL, Revision("r"), "float32", part * len(nodes), hops)
    loads = loads or (0,) * len(nodes)
    prior = 1.0 / (10 * layer_s * (1 + max(loads)))
    return Candidate(route, route.signature, prior, loads, (reputation,) * len(nodes), (layer_s,) * len(nodes))


def served(chosen: Candidate, seconds: dict[str, float], at: float, timed: bool = True, tokens: int = 101) -> Outcome:
    """An answer over the route, ``seconds`` per token and layer of each node, one second to the first token."""
    hops = chosen.route.hops
    spent = {h.node_id: seconds[h.node_id] * (h.end_layer - h.start_layer + 1) * (tokens - 1) for h in hops}
    timings = tuple(HopTiming(n, tokens - 1, s) for n, s in spent.items()) if timed else ()
    first = at - sum(spent.values())
    return Outcome(
        MODEL, chosen.route, chosen.signature, 0, "ok", first - 1.0, first, at, tokens, 10, timings, chosen.loads
    )


def node(wallet: str, start: int, end: int, tps: float = 1.0) -> Node:
    shard = Shard(start, end)
    node_id = make_node_id(Wallet(wallet), shard)
    return Node(node_id, Wallet(wallet), "", MODEL, Revision("r"), 10, shard, benchmark_tokens_per_sec=tps)


# A node claims the same on every route.
BOTH = replace(candidate("a", "b", layer_s=0.015), layer_s=(0.01, 0.02))
THREE = [candidate("a", layer_s=0.01), candidate("b", layer_s=0.02), BOTH]


@pytest.mark.parametrize("name", POLICY_NAMES)
class TestEveryPolicy:
    def test_probabilities_sum_to_one_and_hold_the_chosen(self, name):
        decision = make_policy(name, RoutingConfig()).choose(THREE, 0.0, Random(1))
        assert math.fsum(decision.probabilities.values()) == pytest.approx(1.0)
        assert decision.propensity > 0
        assert decision.signature == decision.route.signature and decision.why

    def test_the_same_dice_choose_the_same_after_any_number_of_looks(self, name):
        policy = make_policy(name, RoutingConfig())
        for at in range(5):
            policy.observe(served(THREE[at % 3], {"a": 0.01, "b": 0.02}, float(at)))
        first = policy.choose(THREE, 9.0, Random(3))
        policy.table(THREE, 9.0)
        policy.choose(THREE, 9.0, Random(4))
        assert policy.choose(THREE, 9.0, Random(3)) == first

    def test_draws_follow_the_probabilities(self, name):
        policy = make_policy(name, RoutingConfig())
        for at in range(4):
            policy.observe(served(THREE[at % 2], {"a": 0.01, "b": 0.012}, float(at)))
        rng = Random(5)
        counts = Counter(policy.choose(THREE, 5.0, rng).signature for _ in range(2000))
        for signature, probability in policy.choose(THREE, 5.0, rng).probabilities.items():
            assert counts[signature] / 2000 == pytest.approx(probability, abs=0.045)

    def test_order_of_candidates_does_not_matter(self, name):
        policy = make_policy(name, RoutingConfig())
        policy.observe(served(THREE[0], {"a": 0.01}, 0.0))
        there, back = policy.choose(THREE, 1.0, Random(2)), policy.choose(THREE[::-1], 1.0, Random(2))
        assert there.signature == back.signature
        assert there.probabilities == pytest.approx(back.probabilities)

    def test_a_single_candidate_is_certain(self, name):
        assert make_policy(name, RoutingConfig()).choose(THREE[:1], 0.0, Random(1)).propensity == pytest.approx(1.0)

    def test_no_candidate_is_no_route_and_an_empty_table(self, name):
        policy = make_policy(name, RoutingConfig())
        with pytest.raises(NoRoute):
            policy.choose([], 0.0, Random(1))
        assert policy.table([], 0.0) == []

    def test_poisoned_outcomes_fail_nothing(self, name):
        policy = make_policy(name, RoutingConfig())
        good = served(THREE[2], {"a": 0.01, "b": 0.02}, 0.0)
        for bad in (math.nan, math.inf, -1.0, 0.0):
            policy.observe(replace(good, finished_at=bad))
            policy.observe(replace(good, hop_timings=(HopTiming(NodeId("a"), 10, bad), HopTiming(NodeId("b"), 0, 1.0))))
            policy.observe(replace(good, first_token_at=bad))
        decision = policy.choose(THREE, 1.0, Random(1))
        assert all(math.isfinite(score) and score > 0 for score in decision.scores.values())

    def test_a_candidate_of_no_reputation_can_still_be_chosen(self, name):
        lost = replace(THREE[0], reputations=(0.0,), prior_tps=0.0)
        assert make_policy(name, RoutingConfig()).choose([lost], 0.0, Random(1)).signature == lost.signature

    def test_topology_makes_arms_stale(self, name):
        policy = make_policy(name, RoutingConfig())
        policy.observe(served(THREE[0], {"a": 0.01}, 0.0))
        policy.on_topology(TopologyChange(MODEL, NodeId("b"), "leave"))
        [row] = policy.table(THREE[:1], 0.0)
        assert row.status == "stale" and row.tps is not None


def test_unknown_policy_names_the_known_ones():
    with pytest.raises(InvalidRequest, match="adr, hop"):
        make_policy("best", RoutingConfig())
    with pytest.raises(InvalidRequest, match="adr, hop"):
        Router(RoutingConfig()).policy("best")


def test_hop_predicts_a_route_it_never_saw():
    policy = make_policy("hop", RoutingConfig())
    first, second = candidate("a", "b"), candidate("c", "d")
    for at in range(10):
        policy.observe(served(first, {"a": 0.001, "b": 0.1}, float(at)))
        policy.observe(served(second, {"c": 0.1, "d": 0.001}, float(at)))
    mixed = candidate("a", "d")
    decision = policy.choose([first, second, mixed], 10.0, Random(1))
    assert decision.signature == mixed.signature and decision.mode == "exploit"
    assert decision.propensity > 0.99


@pytest.mark.parametrize("timed", [True, False])
def test_hop_finds_the_faster_node_with_and_without_hop_timings(timed):
    policy = make_policy("hop", RoutingConfig())
    arms = [candidate("a", "x"), candidate("b", "x")]
    for at in range(12):
        policy.observe(served(arms[at % 2], {"a": 0.01, "b": 0.03, "x": 0.01}, float(at), timed))
    assert policy.choose(arms, 12.0, Random(1)).probabilities[arms[0].signature] > 0.95


def test_hop_turns_away_from_load():
    policy = make_policy("hop", RoutingConfig())
    for at in range(5):
        policy.observe(served(candidate("a"), {"a": 0.010}, float(at)))
        policy.observe(served(candidate("b"), {"b": 0.015}, float(at)))
    busy = candidate("a", loads=(3,))
    assert policy.choose([busy, candidate("b")], 5.0, Random(1)).route.head.node_id == "b"


def test_hop_follows_a_node_that_turned_five_times_slower_within_two_samples():
    policy = make_policy("hop", RoutingConfig())
    arms = [candidate("a"), candidate("b")]
    for at in range(20):
        policy.observe(served(arms[0], {"a": 0.010}, float(at)))
        policy.observe(served(arms[1], {"b": 0.015}, float(at)))
    for at in (20, 21):
        policy.observe(served(arms[0], {"a": 0.050}, float(at)))
    assert policy.choose(arms, 22.0, Random(1)).probabilities[arms[1].signature] > 0.95


def test_hop_tries_a_slow_node_again_after_some_half_lives_but_not_a_hopeless_one():
    policy = make_policy("hop", RoutingConfig())
    arms = [candidate("best"), candidate("slow"), candidate("hopeless")]
    for at in range(5):
        for arm, seconds in zip(arms, (0.01, 0.02, 0.6), strict=True):
            policy.observe(served(arm, {arm.route.head.node_id: seconds}, float(at)))
    soon = policy.choose(arms, 10.0, Random(1)).probabilities
    later = policy.choose(arms, 6000.0, Random(1)).probabilities
    assert later[arms[1].signature] > 10 * soon[arms[1].signature]
    assert later[arms[2].signature] < 1e-3


def test_hop_weighs_reputation():
    arms = [candidate("a"), candidate("b", reputation=0.5)]
    scores = make_policy("hop", RoutingConfig()).choose(arms, 0.0, Random(1)).scores
    assert scores[arms[1].signature] == pytest.approx(0.5 * scores[arms[0].signature])


def test_greedy_always_takes_the_best_estimate():
    policy = make_policy("greedy", RoutingConfig())
    policy.observe(served(THREE[0], {"a": 0.5}, 0.0))
    decision = policy.choose(THREE, 1.0, Random(1))
    assert decision.propensity == 1.0 and decision.signature != THREE[0].signature


def test_eps_keeps_its_share_for_any_route():
    decision = make_policy("eps", RoutingConfig()).choose(THREE, 0.0, Random(1))
    assert sorted(decision.probabilities.values()) == pytest.approx(
        [EPSILON / 3, EPSILON / 3, 1 - EPSILON + EPSILON / 3]
    )


def test_p2c_never_takes_the_worst_of_three():
    probabilities = make_policy("p2c", RoutingConfig()).choose(THREE, 0.0, Random(1)).probabilities
    assert sorted(probabilities.values()) == pytest.approx([0.0, 1 / 3, 2 / 3])


def test_thompson_settles_on_what_it_measured():
    policy = make_policy("thompson", RoutingConfig())
    arms = [candidate("a"), candidate("b")]
    unsure = policy.choose(arms, 0.0, Random(1)).probabilities[arms[0].signature]
    for at in range(20):
        policy.observe(served(arms[0], {"a": 0.01}, float(at)))
        policy.observe(served(arms[1], {"b": 0.02}, float(at)))
    assert unsure == pytest.approx(0.5)
    assert policy.choose(arms, 20.0, Random(1)).probabilities[arms[0].signature] > 0.99


def test_an_arm_policy_slows_what_it_measured_by_the_load_of_now():
    policy = make_policy("greedy", RoutingConfig())
    for at in range(3):
        policy.observe(served(candidate("a"), {"a": 0.010}, float(at)))
        policy.observe(served(candidate("b"), {"b": 0.015}, float(at)))
    assert policy.choose([candidate("a"), candidate("b")], 3.0, Random(1)).route.head.node_id == "a"
    assert policy.choose([candidate("a", loads=(2,)), candidate("b")], 3.0, Random(1)).route.head.node_id == "b"


def test_best_predicted_is_exploit_and_any_other_scout():
    policy, rng = make_policy("random", RoutingConfig()), Random(1)
    for _ in range(50):
        decision = policy.choose(THREE, 0.0, rng)
        best = max(decision.scores, key=lambda s: decision.scores[s])
        assert decision.mode == ("exploit" if decision.signature == best else "scout")


def test_router_shares_what_it_learned_between_policies():
    router = Router(RoutingConfig())
    assert router.observe(served(THREE[0], {"a": 0.01}, 0.0))
    assert all(router.table(THREE[:1], 0.0, name)[0].samples == 1 for name in POLICY_NAMES)


def test_router_proposes_the_records_candidates_for_adr_and_sub_ranges_for_others():
    nodes = [node("slow", 0, 9, 1.0), node("fast", 4, 9, 100.0)]
    router = Router(RoutingConfig())
    assert {c.route.node_ids for c in router.propose(nodes, MODEL)} == {("slow.0-9",)}
    assert ("slow.0-9", "fast.4-9") in {c.route.node_ids for c in router.propose(nodes, MODEL, policy="p2c")}


def test_hop_candidates_come_from_learned_speeds():
    nodes = [node("claims", 0, 9, 100.0), node("does", 0, 9, 10.0)]
    router = Router(RoutingConfig(policy="hop"))
    claims, does = sorted(router.propose(nodes, MODEL), key=lambda c: c.signature)[:2]
    for at in range(3):
        router.observe(served(claims, {"claims.0-9": 1.0}, float(at)))
        router.observe(served(does, {"does.0-9": 0.01}, float(at)))
    assert propose("hop", router.memory, nodes, MODEL)[0].route.head.node_id == "does.0-9"


def test_epoch_for_outcomes_follows_topology():
    router = Router(RoutingConfig())
    assert router.epoch(MODEL) == 0
    router.on_topology(TopologyChange(MODEL, NodeId("a"), "join"))
    assert router.epoch(MODEL) == 1


def test_pinned_and_fallback_are_certain_and_say_why():
    route = THREE[0].route
    pinned = pinned_decision(route)
    assert (pinned.mode, pinned.propensity, pinned.signature) == ("pinned", 1.0, route.signature)
    fallback = greedy_fallback([node("a", 0, 9)], MODEL, "learning is off")
    assert (fallback.mode, fallback.why) == ("greedy-fallback", "learning is off")
    with pytest.raises(NoRoute):
        greedy_fallback([], MODEL, "nobody is there")
