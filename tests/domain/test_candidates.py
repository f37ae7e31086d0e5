from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.candidates import (
    MAX_CANDIDATES,
    RELAY_TRIP_S,
    Candidate,
    enumerate_routes,
    harmonic_tps,
    hop_prior_tps,
)
from meshnet.domain.coverage import uncovered_layers
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.route_search import k_best_routes
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")
N_LAYERS = 8
ENUMERATIONS = [enumerate_routes, k_best_routes]


def node(wallet: str, start: int, end: int, n_layers: int = N_LAYERS, **changes) -> Node:
    shard = Shard(start, end)
    made = Node(make_node_id(Wallet(wallet), shard), Wallet(wallet), "", MODEL, Revision("r"), n_layers, shard)
    return replace(made, **changes)


@st.composite
def swarms(draw: st.DrawFn) -> list[Node]:
    """Nodes of two revisions and dtypes, some not ready, some with broken numbers."""
    nodes = []
    for i in range(draw(st.integers(0, 12))):
        start = draw(st.sampled_from([0, 0, 0, *range(N_LAYERS)]))
        nodes.append(
            node(
                f"n{i}",
                start,
                draw(st.integers(start, N_LAYERS - 1)),
                benchmark_tokens_per_sec=draw(st.sampled_from([1.0, 2.0, 50.0, 0.0, -1.0, math.nan, math.inf])),
                queue_depth=draw(st.integers(-1, 5)),
                in_flight=draw(st.integers(0, 5)),
                reputation=draw(st.sampled_from([1.0, 0.5, 0.0, math.nan, 7.0])),
                revision=Revision(draw(st.sampled_from(["r", "r", "r", "s"]))),
                dtype=draw(st.sampled_from(["float32", "float32", "bfloat16"])),
                state=draw(st.sampled_from(["ready", "ready", "ready", "loading", "draining"])),
            )
        )
    return nodes


def complete_groups(nodes: list[Node]) -> list[list[Node]]:
    """By brute force: the ready nodes of each revision and dtype that together hold every layer."""
    groups = [
        [n for n in nodes if n.state == "ready" and (n.revision, n.dtype) == key]
        for key in sorted({(n.revision, n.dtype) for n in nodes})
    ]
    return [group for group in groups if group and not uncovered_layers(group)]


def check_route(candidate: Candidate, nodes: list[Node]) -> None:
    by_id = {n.node_id: n for n in nodes}
    hops = candidate.route.hops
    assert hops[0].start_layer == 0 and hops[-1].end_layer == N_LAYERS - 1
    assert [hop.start_layer for hop in hops[1:]] == [hop.end_layer + 1 for hop in hops[:-1]]
    assert len({hop.node_id for hop in hops}) == len(hops)
    for hop in hops:
        held = by_id[hop.node_id]
        assert held.shard.holds(hop.start_layer, hop.end_layer)
        assert (held.state, held.revision, held.dtype) == ("ready", candidate.route.revision, candidate.route.dtype)
    assert by_id[hops[0].node_id].is_head
    assert candidate.signature == candidate.route.signature
    assert math.isfinite(candidate.prior_tps) and candidate.prior_tps >= 0


@pytest.mark.parametrize("enumerate_", ENUMERATIONS)
@given(nodes=swarms())
def test_every_candidate_is_a_complete_route_of_live_like_nodes(enumerate_, nodes):
    candidates = enumerate_(nodes, MODEL)
    for candidate in candidates:
        check_route(candidate, nodes)
    assert len({c.signature for c in candidates}) == len(candidates)
    assert len({c.route.revision for c in candidates}) <= 1


@pytest.mark.parametrize("enumerate_", ENUMERATIONS)
@given(nodes=swarms())
def test_candidates_exist_exactly_when_some_group_holds_every_layer_and_a_head(enumerate_, nodes):
    assert bool(enumerate_(nodes, MODEL)) == bool(complete_groups(nodes))


@given(nodes=swarms())
def test_adr_has_one_candidate_per_head_best_prior_first_at_most_eight(nodes):
    candidates = enumerate_routes(nodes, MODEL)
    heads = [c.route.head.node_id for c in candidates]
    assert len(set(heads)) == len(heads) <= MAX_CANDIDATES
    assert [c.prior_tps for c in candidates] == sorted((c.prior_tps for c in candidates), reverse=True)


@given(nodes=swarms())
def test_adr_prior_is_the_bottleneck_hops(nodes):
    by_id = {n.node_id: n for n in nodes}
    for candidate in enumerate_routes(nodes, MODEL):
        expected = min(hop_prior_tps(by_id[hop.node_id]) for hop in candidate.route.hops)
        assert candidate.prior_tps == expected


@pytest.mark.parametrize("enumerate_", ENUMERATIONS)
@given(nodes=swarms(), seed=st.integers())
def test_the_order_of_nodes_does_not_matter(enumerate_, nodes, seed):
    shuffled = list(nodes)
    Random(seed).shuffle(shuffled)
    assert enumerate_(shuffled, MODEL) == enumerate_(nodes, MODEL)


@given(st.floats(0.1, 100), st.integers(0, 50), st.floats(0, 1))
def test_more_queue_never_raises_the_prior_and_more_reputation_never_lowers_it(benchmark, queue, reputation):
    quiet = node("a", 0, 7, benchmark_tokens_per_sec=benchmark, queue_depth=queue, reputation=reputation)
    assert hop_prior_tps(replace(quiet, queue_depth=queue + 1)) <= hop_prior_tps(quiet)
    assert hop_prior_tps(replace(quiet, reputation=1.0)) >= hop_prior_tps(quiet)


def test_prior_takes_the_larger_of_heartbeat_and_own_in_flight():
    assert hop_prior_tps(node("a", 0, 7, benchmark_tokens_per_sec=12.0, queue_depth=2, in_flight=3)) == 3.0
    assert hop_prior_tps(node("a", 0, 7, benchmark_tokens_per_sec=12.0, queue_depth=5, in_flight=3)) == 2.0


def test_equally_far_tails_are_spread_by_load():
    nodes = [node("head", 0, 3), node("tail1", 4, 7, in_flight=1), node("tail2", 4, 7)]
    [candidate] = enumerate_routes(nodes, MODEL)
    assert candidate.route.tail.node_id == "tail2.4-7"


def test_a_ninth_head_is_dropped_by_prior():
    nodes = [node(f"n{i}", 0, 7, benchmark_tokens_per_sec=float(i + 1)) for i in range(10)]
    candidates = enumerate_routes(nodes, MODEL)
    assert [c.prior_tps for c in candidates] == [10, 9, 8, 7, 6, 5, 4, 3]


def test_routes_of_two_dtypes_compete_but_other_weights_do_not():
    nodes = [node("a", 0, 7), node("b", 0, 7, dtype="bfloat16"), node("c", 0, 7, revision=Revision("s"))]
    assert {c.route.head.node_id for c in enumerate_routes(nodes, MODEL)} == {"a.0-7", "b.0-7"}


def test_a_node_that_claims_layers_the_model_has_not_is_ignored():
    nodes = [node("a", 0, 7), node("b", 4, 9)]
    assert [c.route.node_ids for c in enumerate_routes(nodes, MODEL)] == [("a.0-7",)]


@pytest.mark.parametrize("start,end", [(1, 7), (0, 6)])
def test_gap_at_either_end_leaves_no_candidate(start, end):
    assert enumerate_routes([node("a", start, end)], MODEL) == []


def test_harmonic_prior_adds_times_up():
    # 4 layers x 10 ms x (1 + 1) / 0.5 + 4 layers x 5 ms + two links of 5 ms = 0.19 s
    candidate = k_best_routes(
        [
            node("a", 0, 3, benchmark_tokens_per_sec=25.0, in_flight=1, reputation=0.5),
            node("b", 4, 7, benchmark_tokens_per_sec=50.0),
        ],
        MODEL,
    )[0]
    assert candidate.prior_tps == pytest.approx(1 / 0.19)
    assert harmonic_tps(candidate.route.hops, (0, 0), (1.0, 0.0), candidate.layer_s) == 0.0


def test_output_head_counts_as_layers_of_the_tail_alone():
    # b: 0.02 s over 4 layers and a head of 4 more: 2.5 ms each. Whole route: 4 x 10 ms + 8 x 2.5 ms + two links.
    tail = node("b", 4, 7, benchmark_tokens_per_sec=50.0, tail_layers=4.0)
    found = k_best_routes([node("a", 0, 3, benchmark_tokens_per_sec=25.0, tail_layers=9.0), tail], MODEL)[0]
    assert [hop.work_layers for hop in found.route.hops] == [4.0, 8.0]
    assert found.layer_s == pytest.approx((0.01, 0.0025))
    assert found.prior_tps == pytest.approx(1 / 0.07)


@pytest.mark.parametrize("find", ENUMERATIONS)
def test_a_hop_behind_a_relay_is_expected_to_take_its_trip_longer(find):
    relayed = {"url": f"relay://192.0.2.9:7091/{'b' * 20}"}
    direct = find([node("a", 0, 7, benchmark_tokens_per_sec=50.0)], MODEL)[0]
    behind = find([node("a", 0, 7, benchmark_tokens_per_sec=50.0, **relayed)], MODEL)[0]
    assert 1 / behind.prior_tps - 1 / direct.prior_tps == pytest.approx(RELAY_TRIP_S)
    twins = [node("a", 0, 7, **relayed), node("b", 0, 7)]
    assert find(twins, MODEL)[0].route.head.node_id == "b.0-7"
