from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.assignment import (
    Assignment,
    JoinRequest,
    ModelNeed,
    assign,
    assignment_score,
    choose_window,
    layer_capacity,
    promised_shards,
)
from meshnet.domain.budget import ModelCost, Promise, memory_need, widest_shards
from meshnet.domain.coverage import coverage_map
from meshnet.domain.errors import InvalidRequest, NotFound
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.reservations import Reservation, Reservations
from meshnet.domain.shards import Shard

PROMISE = Promise(1, 1)
REVISION = Revision("r")


def cost_of(n_layers: int = 30, model: str = "m", ends: int = 0) -> ModelCost:
    """One byte a layer, so that a budget of 3 is a budget of three layers; ``ends`` bytes for embedding and head."""
    return ModelCost(
        ModelKey(model), REVISION, "float32", 0, (1,) * n_layers, (0,) * n_layers, ends, ends, workspace_bytes=0
    )


def node(wallet: str, start: int, end: int, n_layers: int = 30, tps: float = 1.0, **changes) -> Node:
    shard = Shard(start, end)
    made = Node(
        make_node_id(Wallet(wallet), shard), Wallet(wallet), "", ModelKey("m"), REVISION, n_layers, shard,
        benchmark_tokens_per_sec=tps,
    )  # fmt: skip
    return replace(made, **changes)


def join(budget: int, holder: str = "new", **changes) -> JoinRequest:
    return JoinRequest(holder, budget, PROMISE, **changes)


# The score


@pytest.mark.parametrize(
    ("rpm", "deficit", "score"),
    [
        (0.0, 0.0, 0.01),
        (0.0, 1.0, 1.01),
        (10.0, 1 / 40, 0.385),
        (10.0, 0.0, 0.11),
        (100.0, 0.0, 1.01),
        (15.0, 0.5, 8.16),
        (60.0, 1.0, 61.61),
    ],
)
def test_score_is_the_formula(rpm, deficit, score):
    assert assignment_score(rpm, deficit) == pytest.approx(score, abs=1e-12)
    assert assignment_score(rpm, deficit) == (rpm + 1.0) * (deficit + 0.01)


def test_crossovers_with_an_idle_and_uncovered_model():
    idle = assignment_score(0.0, 1.0)
    crossover = 1.01 / (1 / 40 + 0.01) - 1
    assert round(crossover, 1) == 27.9
    assert assignment_score(27.8, 1 / 40) < idle < assignment_score(27.9, 1 / 40)
    assert assignment_score(99.9, 0.0) < idle < assignment_score(100.1, 0.0)


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(numbers, numbers)
def test_score_is_always_a_positive_number(rpm, deficit):
    score = assignment_score(rpm, deficit)
    assert math.isfinite(score)
    assert score >= 0.01


@given(st.floats(0, 1e8), st.floats(0, 1e8), st.floats(0, 1), st.floats(0, 1))
def test_score_is_monotone_in_both(rpm, more, deficit, wider):
    low, high = sorted((deficit, wider))
    assert assignment_score(rpm, low) <= assignment_score(rpm + more, low)
    assert assignment_score(rpm, low) <= assignment_score(rpm, high)


def test_not_a_number_neither_wins_nor_spoils():
    assert assignment_score(math.nan, 0.5) == assignment_score(0.0, 0.5)
    assert assignment_score(10.0, math.nan) == assignment_score(10.0, 0.0)
    assert assignment_score(-5.0, 2.0) == assignment_score(0.0, 1.0)


# The model


def test_the_model_with_the_highest_score_is_given():
    idle = ModelNeed(cost_of(10, "idle"))
    busy = ModelNeed(cost_of(10, "m"), 30.0, (node("a", 0, 8, 10),))
    assert assign(join(3), [idle, busy]).model_key == "m"
    calm = replace(busy, demand_rpm=2.0)
    assert assign(join(3), [idle, calm]).model_key == "idle"


def test_a_model_that_does_not_fit_gives_way_to_one_that_does():
    big = ModelNeed(replace(cost_of(10, "big"), layer_bytes=(50,) * 10), 1000.0)
    assert assign(join(3), [big, ModelNeed(cost_of(10, "small"))]).model_key == "small"


def test_a_wanted_model_is_given_whatever_the_score():
    needs = [ModelNeed(cost_of(10, "a"), 99.0), ModelNeed(cost_of(10, "b"))]
    assert assign(join(3, model_key=ModelKey("b")), needs).model_key == "b"
    with pytest.raises(NotFound, match="The model c"):
        assign(join(3, model_key=ModelKey("c")), needs)
    with pytest.raises(NotFound, match="Any model"):
        assign(join(3), [])


def test_layers_that_the_owner_names_are_given_whatever_the_budget():
    needs = [ModelNeed(cost_of())]
    given_layers = assign(join(1, model_key=ModelKey("m"), shard=Shard(4, 20)), needs)
    assert (given_layers.shard, given_layers.why) == (Shard(4, 20), "Layers 4-20 of m as the machine's owner says.")
    with pytest.raises(InvalidRequest, match="0-29, not 4-30"):
        assign(join(1, model_key=ModelKey("m"), shard=Shard(4, 30)), needs)


def test_equal_scores_go_to_the_thinner_model_then_by_name():
    twice = ModelNeed(cost_of(10, "m"), 0.0, (node("a", 0, 9, 10), node("b", 0, 9, 10)))
    once = ModelNeed(cost_of(10, "n"), 0.0, (node("c", 0, 9, 10, model_key=ModelKey("n")),))
    assert assign(join(3), [twice, once]).model_key == "n"
    assert assign(join(3), [ModelNeed(cost_of(10, "y")), ModelNeed(cost_of(10, "x"))]).model_key == "x"


def test_too_small_a_budget_says_how_much_is_short():
    cost = replace(cost_of(4), layer_bytes=(3_000_000_000,) * 4, workspace_bytes=500_000_000)
    with pytest.raises(InvalidRequest, match=r"2\.00 GB hold no layer.*needs 3\.50 GB.*1\.50 GB more") as caught:
        assign(join(2_000_000_000), [ModelNeed(cost)])
    assert (caught.value.code, caught.value.param) == ("budget_too_small", "memory_bytes")


def test_an_assignment_says_what_and_why():
    given_ = assign(join(4), [ModelNeed(cost_of(10), 10.0, (node("a", 0, 7, 10),))])
    assert (given_.shard, given_.price_per_token) == (Shard(6, 9), 0.0)
    assert given_.score == assignment_score(10.0, 0.2)
    assert given_.coverage_deficit == 0.2
    assert given_.need == memory_need(cost_of(10), Shard(6, 9), PROMISE)
    assert "10.0 requests/min and 20% of its layers" in given_.why
    assert "score 2.310" in given_.why
    assert "Layers 6-9 close 2 of 2 open layers." in given_.why


# The window


def window(capacity: list[float], budget: int, ends: int = 0) -> Shard:
    cost = cost_of(len(capacity), ends=ends)
    return choose_window(capacity, widest_shards(cost, budget, PROMISE), cost, PROMISE)


@pytest.mark.parametrize(
    ("capacity", "budget", "shard"),
    [
        ([0, 0, 0, 0, 0, 0], 2, Shard(0, 1)),
        ([1, 1, 0, 0, 0, 0], 2, Shard(2, 3)),
        ([1, 1, 1, 1, 1, 0], 3, Shard(3, 5)),
        ([1, 0, 5, 1, 0, 2], 2, Shard(0, 1)),
        ([9, 9, 4, 3, 9, 9], 2, Shard(2, 3)),
        ([5, 0, 5, 1, 1, 1], 2, Shard(0, 1)),
        ([2, 2, 2, 2, 2, 2], 6, Shard(0, 5)),
    ],
)
def test_the_weakest_window_is_taken(capacity, budget, shard):
    assert window(capacity, budget) == shard


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=1, max_size=12), st.integers(1, 12))
def test_no_other_window_has_weaker_layers(capacity, budget):
    chosen = window(capacity, budget)
    size = min(budget, len(capacity))
    best = min(sorted(capacity[i : i + size]) for i in range(len(capacity) - size + 1))
    assert sorted(capacity[chosen.start : chosen.end + 1]) == best


def test_the_ends_are_not_left_to_the_last():
    """Six layers fit in the middle, four beside the embedding: the first that can be the head is."""
    assert window([0.0] * 12, 6, ends=2) == Shard(0, 3)
    assert window([1.0] * 4 + [0.0] * 8, 6, ends=2) == Shard(4, 9)
    assert window([1.0] * 10 + [0.0] * 2, 6, ends=2) == Shard(8, 11)


def test_capacity_adds_up_and_does_not_depend_on_order():
    shards = [(Shard(0, 1), 0.1), (Shard(1, 2), 0.2), (Shard(1, 9), 0.3)]
    assert layer_capacity(shards, 4) == [0.1, 0.1 + 0.2 + 0.3, 0.2 + 0.3, 0.3]
    assert all(layer_capacity(p, 4) == layer_capacity(shards, 4) for p in itertools.permutations(shards))


def test_only_exact_weights_count_and_nobody_twice():
    need = ModelNeed(
        cost_of(30),
        0.0,
        (
            node("a", 0, 4),
            node("b", 5, 6, state="loading"),
            node("c", 7, 8, state="draining"),
            node("d", 9, 10, dtype="bfloat16"),
            node("e", 9, 10, revision=Revision("old")),
            node("me", 11, 12),
            node("f", 13, 14, tps=math.nan),
        ),
        tuple(
            Reservation(holder, ModelKey(model), REVISION, "float32", Shard(20, 21), tps)
            for holder, model, tps in [
                ("a", "m", 1.0),
                ("c", "m", 4.0),
                ("me", "m", 1.0),
                ("x", "n", 1.0),
                ("y", "m", -1.0),
            ]
        ),
    )
    assert promised_shards(need, "me") == [
        (Shard(0, 4), 1.0),
        (Shard(5, 6), 1.0),
        (Shard(13, 14), 1.0),
        (Shard(20, 21), 4.0),
        (Shard(20, 21), 1.0),
    ]


# Meshes that grow

BUDGETS = (3, 5, 7, 10, 30)


def grow(budgets, at_once: bool, cost: ModelCost | None = None) -> list[Assignment]:
    """Nodes join one after another; each is up before the next, or none is up before all have their assignment."""
    cost = cost or cost_of()
    nodes: list[Node] = []
    reservations = Reservations()
    given_: list[Assignment] = []
    for i, budget in enumerate(budgets):
        held = tuple(reservations.live(float(i)))
        answer = assign(join(budget, f"w{i}"), [ModelNeed(cost, 0.0, tuple(nodes), held)])
        given_.append(answer)
        reservations.reserve(
            Reservation(f"w{i}", answer.model_key, answer.revision, answer.dtype, answer.shard), float(i)
        )
        if not at_once:
            reservations.release(f"w{i}")
            nodes.append(node(f"w{i}", answer.shard.start, answer.shard.end))
    return given_


def depths(given_: list[Assignment], n_layers: int = 30) -> list[int]:
    return [sum(layer in a.shard for a in given_) for layer in range(n_layers)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("budgets", list(itertools.permutations(BUDGETS)))
def test_five_nodes_leave_no_gap_as_soon_as_budgets_allow_none(budgets, at_once):
    given_ = grow(budgets, at_once)
    assert [len(a.shard) for a in given_] == list(budgets)
    for n in range(1, 6):
        covered = sum(depth > 0 for depth in depths(given_[:n]))
        assert covered == min(sum(budgets[:n]), 30)
        if covered < 30:
            assert max(depths(given_[:n])) == 1, "no layer twice while another is open"


@pytest.mark.parametrize("at_once", [False, True])
def test_the_five_of_the_story(at_once):
    assert [str(a.shard) for a in grow(BUDGETS, at_once)] == ["0-2", "3-7", "8-14", "15-24", "0-29"]


def test_ten_that_join_at_once_get_different_windows():
    given_ = grow([3] * 10, at_once=True)
    assert len({a.shard for a in given_}) == 10
    assert depths(given_) == [1] * 30


def test_without_reservations_all_would_get_the_same():
    """The herd that reservations are for."""
    answers = [assign(join(3, f"w{i}"), [ModelNeed(cost_of())]).shard for i in range(10)]
    assert set(answers) == {Shard(0, 2)}


def test_heavy_ends_are_covered_by_as_few_nodes_as_can():
    """28 layers + 2 bytes at each end = 32 bytes: four nodes of eight bytes are exactly enough."""
    assert all(depth == 1 for depth in depths(grow([8] * 4, True, cost_of(28, ends=2)), 28))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.booleans())
def test_any_budgets_cover_all_they_can_while_layers_are_open(budgets, at_once):
    """A node covers as many open layers as any window of its size can, so the deficit never rises and falls to 0."""
    given_ = grow(budgets, at_once)
    for n in range(len(given_)):
        before = depths(given_[:n])
        size = min(budgets[n], 30)
        most = max(before[i : i + size].count(0) for i in range(31 - size))
        closed = before.count(0) - depths(given_[: n + 1]).count(0)
        assert closed == most


def test_a_lost_middle_is_given_to_the_next():
    nodes = (node("a", 0, 9), node("c", 20, 29))
    answer = assign(join(12), [ModelNeed(cost_of(), 1.0, nodes)])
    assert answer.shard.start <= 10
    assert answer.shard.end >= 19
    after = (*nodes, node("new", answer.shard.start, answer.shard.end))
    assert coverage_map(after, ModelKey("m"), 30).gaps == ()


def test_a_node_that_comes_back_does_not_stand_in_its_own_way():
    nodes = (node("me", 0, 9), node("b", 10, 29))
    assert assign(join(10, "me"), [ModelNeed(cost_of(), 0.0, nodes)]).shard == Shard(0, 9)


def test_random_leaves_and_joins_close_every_gap_again():
    """What one node of at most nine layers leaves open, the next of nine closes."""
    rng = Random(13)
    nodes = [node(f"w{i}", i * 5, i * 5 + 4) for i in range(6)]
    for i in range(6, 60):
        nodes.pop(rng.randrange(len(nodes)))
        answer = assign(join(9, f"w{i}"), [ModelNeed(cost_of(), 0.0, tuple(nodes))])
        nodes.append(node(f"w{i}", answer.shard.start, answer.shard.end))
        assert coverage_map(nodes, ModelKey("m"), 30).gaps == ()
