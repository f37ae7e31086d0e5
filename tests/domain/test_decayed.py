from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.decayed import DecayedSum, decay


def test_half_is_left_after_a_half_life_and_nothing_grows_backwards():
    assert decay(600.0, 600.0) == 0.5
    assert decay(0.0, 600.0) == decay(-1e12, 600.0) == 1.0


def test_ratio_of_an_empty_sum_is_none():
    assert DecayedSum().ratio is None and DecayedSum().mass(0.0, 600.0) == 0.0


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    total = DecayedSum()
    total.add(2.0, 10.0, 0.0, 600.0)
    total.add(30.0, 100.0, 0.0, 600.0)
    assert total.ratio == pytest.approx(32 / 110)


def test_older_news_weighs_less():
    total = DecayedSum()
    total.add(1.0, 1.0, 0.0, 600.0)
    total.add(4.0, 1.0, 600.0, 600.0)
    assert total.ratio == pytest.approx((0.5 + 4) / 1.5)
    assert total.mass(1200.0, 600.0) == pytest.approx(0.75)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1e6)), min_size=1, max_size=20), st.floats(0, 1e6))
def test_mass_never_grows_by_time_alone(events, now):
    total = DecayedSum()
    for amount, at in events:
        total.add(amount, amount, at, 600.0)
    assert total.mass(now, 600.0) <= total.denominator
    assert total.ratio == pytest.approx(1.0)
