from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.coverage import (
    coverage_deficit,
    coverage_map,
    layer_depths,
    layer_ranges,
    shard_depths,
    uncovered_layers,
)
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.shards import Shard, format_layers

MODEL = ModelKey("m")


def node(wallet: str, start: int, end: int, state="ready", n_layers: int = 10, model: str = "m") -> Node:
    shard = Shard(start, end)
    return Node(
        make_node_id(Wallet(wallet), shard),
        Wallet(wallet),
        f"http://{wallet}",
        ModelKey(model),
        Revision("r"),
        n_layers,
        shard,
        state=state,
    )


def test_depths_deficit_and_uncovered():
    nodes = [node("a", 0, 4), node("b", 3, 6)]
    assert layer_depths(nodes, 10) == [1, 1, 1, 2, 2, 1, 1, 0, 0, 0]
    assert uncovered_layers(nodes) == [7, 8, 9]
    assert uncovered_layers([]) == []
    assert coverage_deficit(layer_depths(nodes, 10)) == 0.3
    assert coverage_deficit([]) == 1.0


def test_a_map_names_hosts_gaps_and_single_hosts():
    map_ = coverage_map([node("b", 3, 6), node("a", 0, 4)], MODEL, 10)
    assert map_.layers[3].node_ids == ("a.0-4", "b.3-6")
    assert map_.depths == (1, 1, 1, 2, 2, 1, 1, 0, 0, 0)
    assert map_.gaps == (Shard(7, 9),)
    assert map_.deficit == map_.promised_deficit == 0.3
    assert map_.single_host == (Shard(0, 2), Shard(5, 6))
    assert map_.summary == "layers 7-9 of 10 are held by no node"


def test_loss_of_a_node_uncovers_what_it_alone_holds():
    map_ = coverage_map([node("a", 0, 4), node("b", 3, 9), node("c", 6, 7)], MODEL, 10)
    assert map_.uncovered_by_loss(node("a", 0, 4).node_id) == (Shard(0, 2),)
    assert map_.uncovered_by_loss(node("b", 3, 9).node_id) == (Shard(5, 5), Shard(8, 9))
    assert map_.uncovered_by_loss(node("c", 6, 7).node_id) == ()
    assert [loss.node_id for loss in map_.losses] == ["a.0-4", "b.3-9"]
    assert map_.summary == "all 10 layers are held; 0-2, 5, 8-9 by one node only"


def test_loading_and_reserved_layers_are_promised_but_do_not_serve():
    map_ = coverage_map([node("a", 0, 4), node("b", 5, 6, "loading")], MODEL, 10, [Shard(6, 8)])
    assert map_.gaps == (Shard(5, 9),)
    assert map_.on_the_way == (Shard(5, 8),)
    assert (map_.deficit, map_.promised_deficit) == (0.5, 0.1)
    assert map_.layers[6].promised == 2
    assert map_.layers[6].loading_ids == ("b.5-6",)
    assert map_.summary == "layers 5-9 of 10 are held by no node; 5-8 on the way"


def test_draining_nodes_and_other_models_do_not_count():
    nodes = [node("a", 0, 9, "draining"), node("b", 0, 9, model="n"), node("c", 0, 9, n_layers=12)]
    assert coverage_map(nodes, MODEL, 10).deficit == 1.0


def test_a_fully_held_model_in_words():
    nodes = [node("a", 0, 9), node("b", 0, 9)]
    assert coverage_map(nodes, MODEL, 10).summary == "all 10 layers are held, each by at least 2 nodes"


@pytest.mark.parametrize(
    ("layers", "ranges"),
    [([], ()), ([3], (Shard(3, 3),)), ([7, 0, 1, 2, 2], (Shard(0, 2), Shard(7, 7)))],
)
def test_layer_ranges(layers, ranges):
    assert layer_ranges(layers) == ranges


@given(st.sets(st.integers(0, 60)))
def test_ranges_and_words_agree_and_hold_exactly_the_layers(layers):
    ranges = layer_ranges(layers)
    assert {layer for r in ranges for layer in range(r.start, r.end + 1)} == layers
    assert ", ".join(str(r) if len(r) > 1 else str(r.start) for r in ranges) == format_layers(layers)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6))
def test_removing_a_node_opens_exactly_what_was_foretold(pairs):
    nodes = [node(f"w{i}", min(pair), max(pair)) for i, pair in enumerate(pairs)]
    before = coverage_map(nodes, MODEL, 10)
    for gone in nodes:
        after = coverage_map([n for n in nodes if n is not gone], MODEL, 10)
        opened = {i for i in range(10) if before.depths[i] and not after.depths[i]}
        assert before.uncovered_by_loss(gone.node_id) == layer_ranges(opened)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)).map(sorted), max_size=12))
def test_depths_count_every_shard_on_every_layer_that_the_model_has(ranges):
    shards = [Shard(start, end) for start, end in ranges]
    expected = [sum(layer in shard for shard in shards) for layer in range(10)]
    assert shard_depths(shards, 10) == expected
