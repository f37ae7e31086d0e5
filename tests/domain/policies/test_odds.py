from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.policies.odds import beat_probabilities


def test_two_routes_are_chosen_as_often_as_thompson_would():
    gap, variance = 0.3, 0.2
    rng = Random(1)
    wins = sum(rng.gauss(gap, math.sqrt(variance)) < 0 for _ in range(40_000)) / 40_000
    assert beat_probabilities([0.0, gap], [0.0, variance], 0)[1] == pytest.approx(wins, abs=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 10)), max_size=12))
def test_probabilities_sum_to_one_and_the_best_is_the_likeliest(others):
    probabilities = beat_probabilities([0.0, *(g for g, _ in others)], [0.0, *(v for _, v in others)], 0)
    assert math.fsum(probabilities) == pytest.approx(1.0)
    assert probabilities[0] == max(probabilities)


def test_what_is_certain_is_never_tried():
    assert beat_probabilities([0.0, 1e-9], [0.0, 0.0], 0) == [1.0, 0.0]


def test_equal_routes_share():
    assert beat_probabilities([0.0, 0.0, 0.0], [0.0, 0.0, 1.0], 0) == pytest.approx([1 / 3] * 3)


def test_what_can_gain_too_little_is_not_tried():
    assert beat_probabilities([0.0, 0.0], [0.0, 0.0001], 0, margin=0.05)[0] > 0.999
    assert beat_probabilities([0.0, 0.0], [0.0, 1.0], 0, margin=0.05)[0] < 0.53
