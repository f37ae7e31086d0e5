from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.coverage import coverage_map
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.rebalance import MoveAdvice, advise_move
from meshnet.domain.reservations import Reservation
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")


def node(wallet: str, start: int, end: int, tps: float = 1.0, state="ready") -> Node:
    shard = Shard(start, end)
    return Node(
        make_node_id(Wallet(wallet), shard), Wallet(wallet), "", MODEL, Revision("r"), 10, shard, state=state,
        benchmark_tokens_per_sec=tps,
    )  # fmt: skip


def moved(nodes: list[Node], advice: MoveAdvice) -> list[Node]:
    def to(n: Node) -> Node:
        return replace(n, shard=advice.to_shard, node_id=make_node_id(n.wallet, advice.to_shard))

    return [to(n) if n.node_id == advice.node_id else n for n in nodes]


def test_a_spare_node_is_sent_to_a_gap():
    nodes = [node("a", 0, 4), node("b", 0, 4), node("c", 5, 7)]
    advice = advise_move(nodes)
    assert advice is not None
    assert (advice.node_id, advice.from_shard, advice.to_shard) == ("a.0-4", Shard(0, 4), Shard(5, 9))
    assert advice.why == "Layers 0-4 are held by others too; 5-9 closes 2 of 2 open layers."


def test_a_crowd_is_spread_when_the_weakest_layer_gains_a_lot():
    nodes = [node("a", 0, 4), node("b", 0, 4), node("c", 0, 4, 3.0), node("d", 5, 9)]
    advice = advise_move(nodes)
    assert advice is not None
    assert advice.to_shard == Shard(5, 9)
    assert (advice.weakest_before, advice.weakest_after) == (1.0, 2.0)
    assert "lifts the weakest layer from 1.0 to 2.0 tokens/s" in advice.why


@pytest.mark.parametrize(("spare_tps", "expected"), [(1.0, False), (1.3, False), (1.34, True), (5.0, True)])
def test_hysteresis_is_three_quarters(spare_tps, expected):
    """4 tokens/s now; with the spare's own on top it must come to more than 4 / 0.75 = 5.33."""
    nodes = [node("a", 0, 4, 40.0), node("spare", 0, 4, spare_tps), node("b", 5, 9, 4.0)]
    assert (advise_move(nodes, may_move=lambda n: n.wallet == "spare") is not None) is expected


def test_nobody_leaves_layers_that_no_other_holds():
    assert advise_move([node("a", 0, 4), node("b", 2, 6)]) is None


def test_one_at_a_time():
    nodes = [node("a", 0, 4), node("b", 0, 4), node("c", 5, 7)]
    assert advise_move([*nodes, node("d", 8, 9, state="loading")]) is None
    assert advise_move([*nodes, node("d", 0, 9, state="draining")]) is None
    assert advise_move(nodes, [Reservation("x", MODEL, Revision("r"), "float32", Shard(8, 9))]) is None


def test_only_who_may_and_only_where_it_fits():
    nodes = [node("a", 0, 4), node("b", 0, 4), node("c", 5, 7)]
    assert advise_move(nodes, may_move=lambda n: False) is None
    advice = advise_move(nodes, may_move=lambda n: n.wallet == "b", fits=lambda n, shard: shard.end < 9)
    assert advice is not None
    assert (advice.node_id, advice.to_shard) == ("b.0-4", Shard(4, 8))


def test_an_even_mesh_and_an_empty_one_stay():
    assert advise_move([node("a", 0, 4), node("b", 5, 9), node("c", 0, 9)]) is None
    assert advise_move([]) is None


shards = st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0.5, 50)).map(
    lambda t: (min(t[:2]), max(t[:2]), t[2])
)


@given(st.lists(shards, min_size=1, max_size=6))
def test_following_advice_comes_to_rest_and_never_opens_a_gap(wishes):
    nodes = [node(f"w{i}", *wish) for i, wish in enumerate(wishes)]
    for _ in range(60):
        advice = advise_move(nodes)
        if advice is None:
            break
        gone = coverage_map([n for n in nodes if n.node_id != advice.node_id], MODEL, 10)
        before, after = coverage_map(nodes, MODEL, 10), coverage_map(moved(nodes, advice), MODEL, 10)
        assert gone.gaps == before.gaps, "not even while it moves"
        assert after.deficit <= before.deficit
        nodes = moved(nodes, advice)
    else:
        pytest.fail("the mesh never came to rest")


def test_advice_does_not_depend_on_the_order_of_the_nodes():
    nodes = [node("a", 0, 4), node("b", 0, 4), node("c", 0, 4, 3.0), node("d", 5, 9)]
    expected = advise_move(nodes)
    rng = Random(1)
    for _ in range(10):
        rng.shuffle(nodes)
        assert advise_move(nodes) == expected
