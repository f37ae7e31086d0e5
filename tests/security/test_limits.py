"""Limits by address: rates, and how many nodes one address may register."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.tracker.fleet import Fleet
from meshnet.domain.errors import Overloaded
from meshnet.domain.rates import Rates
from tests.tracker.running import claim


def test_a_bucket_fills_again() -> None:
    rates: Rates[str] = Rates(2.0, 4)
    assert [rates.take("a", 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert rates.take("b", 0.0), "others are not touched"
    assert rates.take("a", 0.5)
    assert not rates.take("a", 0.5)
    rates.forget(100.0)
    assert len(rates) == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 1)), max_size=200))
def test_nobody_takes_more_than_his_rate_and_memory_is_bounded(asked: list[tuple[str, float]]) -> None:
    rates: Rates[str] = Rates(2.0, 4, most=5)
    now, taken = 0.0, {"a": 0}
    for name, step in asked:
        now += step
        if rates.take(name, now) and name == "a":
            taken["a"] += 1
        assert len(rates) <= 5
    names = {name for name, _ in asked}
    if len(names) <= 5:  # Nobody was forgotten.
        assert taken["a"] <= 4 + 2.0 * now + 1e-6


def test_one_address_cannot_fill_the_tracker() -> None:
    fleet = Fleet(lambda: 0.0)
    fleet.max_per_address = 2
    for number in (1, 2):
        fleet.register(claim(number, 0, 29), "192.0.2.1")
    with pytest.raises(Overloaded) as refused:
        fleet.register(claim(3, 0, 29), "192.0.2.1")
    assert refused.value.code == "too_many_nodes"
    fleet.register(claim(1, 0, 14), "192.0.2.1")
    fleet.register(claim(3, 0, 29), "192.0.2.2")
    assert len(fleet.leases()) == 3


def test_ten_thousand_registrations_of_one_address_leave_memory_and_others_alone() -> None:
    fleet = Fleet(lambda: 0.0)
    fleet.max_per_address = 8
    fleet.register(claim(30, 0, 29), "192.0.2.9")
    refused = 0
    for round_ in range(400):
        for number in range(1, 26):
            try:
                fleet.register(claim(number, 0, 29), "192.0.2.1")
            except Overloaded:
                refused += 1
        assert len(fleet.leases()) == 9, round_
    assert refused == 400 * 17
    assert any(lease.claim.name == "n30" for lease in fleet.leases())
