from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.rolling import PER_MINUTE, WINDOWS
from meshnet.domain.slices import MAX_COUNT, MAX_MODELS, Slice, live_part, merge, next_generation

NOW = 1_750_000_020.0
NEWEST = PER_MINUTE.index(NOW)

buckets = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(
        st.sampled_from([window.name for window in WINDOWS]),
        st.dictionaries(st.integers(0, 40), st.integers(0, 9), max_size=20),
        max_size=3,
    ),
    max_size=3,
)
slices = st.builds(
    Slice,
    tracker_id=st.just("t"),
    generation=st.integers(0, 2),
    seq=st.integers(0, 2),
    url=st.sampled_from(["", "http://a", "http://b"]),
    buckets=buckets,
    signed=st.sampled_from(["", "text-1", "text-2"]),
)


def of_one(counts: dict[int, int], seq: int = 1) -> Slice:
    return Slice("t", 1, seq, "http://a", {"m": {"per_minute": counts}})


@given(slices)
def test_merge_is_idempotent(a):
    assert merge(a, a) == a


@given(slices, slices)
def test_merge_is_commutative(a, b):
    assert merge(a, b) == merge(b, a)


@given(slices, slices, slices)
def test_merge_is_associative(a, b, c):
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(slices, slices)
def test_merge_absorbs(a, b):
    assert merge(merge(a, b), b) == merge(a, b)


@given(st.lists(st.dictionaries(st.integers(0, 200), st.integers(1, 9), max_size=61), min_size=3, max_size=3))
def test_laws_hold_at_the_bound_of_buckets(parts):
    a, b, c = (of_one(counts) for counts in parts)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(merge(c, a), b)
    assert len(merge(a, b).buckets["m"]["per_minute"]) <= 61


def test_newer_replaces_older_even_with_less():
    assert merge(of_one({1: 9}, seq=1), of_one({2: 1}, seq=2)) == of_one({2: 1}, seq=2)


def test_a_trimmed_copy_under_the_same_seq_changes_nothing():
    whole = of_one({1: 9, 2: 4})
    assert merge(of_one({2: 4}), whole) == whole


def test_two_texts_under_one_number_end_the_same_everywhere():
    one, two = replace(of_one({1: 9}), signed="b"), replace(of_one({1: 1}), signed="c")
    assert merge(one, two) == merge(two, one) == two


def test_what_is_passed_on_stays_whole_when_it_is_trimmed():
    assert live_part(replace(of_one({NEWEST - 60: 1}), signed="text"), NOW).signed == "text"


def test_two_trackers_do_not_merge():
    with pytest.raises(InvalidRequest, match="add up"):
        merge(of_one({}), replace(of_one({}), tracker_id="u"))


@pytest.mark.parametrize(
    "bad",
    [
        {"m": {"per_minute": {1: -1}}},
        {"m": {"per_minute": {1: MAX_COUNT + 1}}},
        {"m": {"per_minute": {1: math.nan}}},
        {"m": {"per_minute": {1: 1.0}}},
        {"m": {"per_minute": {1: True}}},
        {"m": {"per_minute": {-1: 1}}},
        {"m": {"per_minute": {2**60: 1}}},
        {"m": {"per_minute": {i: 1 for i in range(62)}}},
        {"m": {"per_year": {1: 1}}},
        {"../m": {}},
        {"x" * 5000: {}},
        {f"m{i}": {} for i in range(MAX_MODELS + 1)},
    ],
)
def test_hostile_buckets_are_refused(bad):
    with pytest.raises(InvalidRequest):
        Slice("t", 1, 1, "", bad)


@pytest.mark.parametrize(
    "change",
    [
        {"tracker_id": ""},
        {"tracker_id": "x" * 65},
        {"url": "x" * 3000},
        {"generation": -1},
        {"generation": 2**60},
        {"seq": 1.5},
        {"seq": math.inf},
    ],
)
def test_hostile_heads_are_refused(change):
    with pytest.raises(InvalidRequest):
        replace(of_one({}), **change)


def test_live_part_drops_expired_and_future_buckets():
    slice_ = of_one({NEWEST - 60: 1, NEWEST - 59: 2, NEWEST: 3, NEWEST + 2: 5, NEWEST + 1440: 6})
    assert live_part(slice_, NOW).buckets == {"m": {"per_minute": {NEWEST - 59: 2, NEWEST: 3}}}


def test_live_part_never_holds_more_than_a_window():
    slice_ = of_one({NEWEST - 59 + i: 1 for i in range(61)})
    assert len(live_part(slice_, NOW).buckets["m"]["per_minute"]) == 60


def test_generation_rises_with_the_store_and_without_it():
    assert next_generation(None, 1000.0) == 1000
    assert next_generation(41, 1000.0) == 1000
    assert next_generation(5000, 1000.0) == 5001, "a clock that went back does not lower it"
