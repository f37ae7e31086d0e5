from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.budget import (
    DEFAULT_WORKSPACE_BYTES,
    MemoryNeed,
    ModelCost,
    Promise,
    ends_in_layers,
    format_bytes,
    memory_need,
    smallest_need,
    usable_bytes,
    widest_shards,
)
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import ModelKey, Revision
from meshnet.domain.shards import Shard

PROMISE = Promise(context_tokens=10, sessions=2)
COST = ModelCost(
    ModelKey("m"),
    Revision("r"),
    "float32",
    context_length=100,
    layer_bytes=(100,) * 6,
    kv_bytes_per_token=(3, 3, 0, 3, 3, 3),
    embedding_bytes=250,
    final_bytes=30,
    tied=True,
    workspace_bytes=1000,
)


@pytest.mark.parametrize(
    ("shard", "weights", "kv"),
    [
        (Shard(0, 0), 350, 60),
        (Shard(1, 2), 200, 60),
        (Shard(2, 2), 100, 0),
        (Shard(5, 5), 100 + 30 + 250, 60),
        (Shard(0, 5), 600 + 30 + 250, 300),
    ],
)
def test_a_shard_costs_weights_ends_and_kv(shard, weights, kv):
    assert memory_need(COST, shard, PROMISE) == MemoryNeed(weights, kv, 1000)


def test_an_untied_tail_does_not_pay_for_the_embedding():
    assert memory_need(replace(COST, tied=False), Shard(5, 5), PROMISE).weights_bytes == 130


def test_kv_is_promised_no_longer_than_the_context():
    assert memory_need(COST, Shard(1, 1), Promise(10_000, 1)).kv_bytes == 300
    assert memory_need(replace(COST, context_length=0), Shard(1, 1), Promise(200, 1)).kv_bytes == 600


def test_fixed_state_is_paid_per_session():
    cost = replace(COST, state_bytes_per_session=(0, 0, 7, 0, 0, 0))
    assert memory_need(cost, Shard(2, 2), PROMISE).kv_bytes == 14


@pytest.mark.parametrize(
    ("asked", "available", "usable"),
    [(None, 1000, 800), (500, 1000, 500), (2000, 1000, 1000), (500, -3, 0), (-1, 1000, 0), (None, -5, 0)],
)
def test_budget_is_never_more_than_is_available(asked, available, usable):
    assert usable_bytes(asked, available) == usable


def test_widest_shards_pay_for_the_ends():
    assert widest_shards(COST, 1000 + 330, PROMISE) == [Shard(1, 2), Shard(2, 3), Shard(3, 4), Shard(4, 4)]
    assert widest_shards(COST, 1000 + 99, PROMISE) == []
    assert widest_shards(COST, 1000 + 100, PROMISE) == [Shard(2, 2)]
    assert widest_shards(COST, 10**9, PROMISE)[0] == Shard(0, 5)


@given(st.integers(0, 3000))
def test_widest_shards_fit_and_one_layer_more_does_not(budget):
    for shard in widest_shards(COST, budget, PROMISE):
        assert memory_need(COST, shard, PROMISE).total_bytes <= budget
        if shard.end < 5:
            assert memory_need(COST, Shard(shard.start, shard.end + 1), PROMISE).total_bytes > budget


def test_smallest_need_is_the_cheapest_layer():
    assert smallest_need(COST, PROMISE) == MemoryNeed(100, 0, 1000)


def test_ends_are_counted_in_layers():
    assert ends_in_layers(COST, Shard(0, 2), PROMISE) == (2, 0)  # 250 / 150
    assert ends_in_layers(COST, Shard(3, 5), PROMISE) == (0, 2)  # 280 / 150
    assert ends_in_layers(COST, Shard(1, 4), PROMISE) == (0, 0)
    assert ends_in_layers(replace(COST, embedding_bytes=0, final_bytes=0), Shard(0, 5), PROMISE) == (0, 0)


def test_a_cost_needs_an_entry_a_layer():
    with pytest.raises(InvalidRequest, match="one entry a layer"):
        replace(COST, kv_bytes_per_token=(1,))
    with pytest.raises(InvalidRequest):
        replace(COST, layer_bytes=(), kv_bytes_per_token=())


@pytest.mark.parametrize("bad", [(0, 1), (1, 0), (-1, 4)])
def test_a_promise_is_at_least_one(bad):
    with pytest.raises(InvalidRequest, match="at least one"):
        Promise(*bad)


def test_bytes_as_people_read_them():
    assert format_bytes(1_750_000_000) == "1.75 GB"
    assert format_bytes(45_400_000) == "45 MB"
    assert format_bytes(DEFAULT_WORKSPACE_BYTES) == "671 MB"
