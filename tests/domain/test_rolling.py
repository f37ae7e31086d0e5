from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.rolling import PER_DAY, PER_HOUR, PER_MINUTE, WINDOWS, RollingCounter

START = 1_750_000_020.0  # a whole minute: START % 60 == 0
MINUTE = 60.0
HOUR = 3600.0
DAY = 86_400.0


def counted(*times: float, window=PER_MINUTE) -> RollingCounter:
    counter = RollingCounter(window)
    for time in times:
        counter.add(time)
    return counter


def test_windows_are_those_of_the_record():
    assert [(w.name, w.buckets, w.bucket_s) for w in WINDOWS] == [
        ("per_minute", 60, 60),
        ("per_hour", 24, 3600),
        ("per_day", 30, 86_400),
    ]
    assert [w.minutes for w in WINDOWS] == [60, 1440, 43_200]


@pytest.mark.parametrize(
    ("idle_s", "total"),
    [
        (0, 1),
        (59 * MINUTE, 1),
        (60 * MINUTE - 0.001, 1),
        (60 * MINUTE, 0),
        (61 * MINUTE, 0),
        (120 * MINUTE, 0),
        (10 * DAY, 0),
    ],
)
def test_a_bucket_expires_when_its_window_has_passed(idle_s, total):
    counter = counted(START)
    assert counter.total(START + idle_s) == total
    assert counter.rpm(START + idle_s) == total / 60


@pytest.mark.parametrize("offset", [0.0, 0.5, 30.0, 59.999])
def test_age_is_counted_in_whole_buckets(offset):
    counter = counted(START + offset)
    assert counter.total(START + 60 * MINUTE - 0.001) == 1
    assert counter.total(START + 60 * MINUTE) == 0


@pytest.mark.parametrize("window", WINDOWS)
def test_wrapping_resets_the_slot_first(window):
    counter = RollingCounter(window)
    counter.add(START, 5)
    a_turn_later = START + window.buckets * window.bucket_s
    counter.add(a_turn_later)
    assert counter.buckets(a_turn_later) == {window.index(a_turn_later): 1}


def test_rpm_divides_by_the_whole_window_from_the_first_second():
    counter = counted(*[START] * 30)
    assert counter.rpm(START + 1) == 0.5


def test_the_partial_bucket_counts_and_is_not_scaled():
    counter = counted(START, START + 59, START + 60)
    assert counter.buckets(START + 60) == {PER_MINUTE.index(START): 2, PER_MINUTE.index(START) + 1: 1}


def test_windows_agree_on_a_steady_load():
    counters = [RollingCounter(window) for window in (PER_MINUTE, PER_HOUR)]
    for minute in range(24 * 60):
        for counter in counters:
            counter.add(START + minute * MINUTE, 3)
    end = START + (24 * 60 - 1) * MINUTE
    assert counters[0].rpm(end) == 3.0
    assert counters[1].rpm(end) == pytest.approx(3.0, rel=1 / 24)


@pytest.mark.parametrize("back_s", [1.0, 61.0, HOUR, DAY, 400 * DAY])
def test_clock_back_clears_nothing_and_the_newest_bucket_goes_on(back_s):
    counter = counted(START - 30 * MINUTE, START)
    newest = PER_MINUTE.index(START)
    counter.add(START - back_s)
    assert counter.buckets(START - back_s) == {newest - 30: 1, newest: 2}
    assert counter.total(START) == 3, "a blip costs nothing"


def test_two_blips_far_apart_are_two_blips():
    counter = counted(START, START - 5 * MINUTE, START + MINUTE)
    later = START + 30 * MINUTE
    counter.add(later)
    counter.add(later - 10 * MINUTE)
    assert counter.buckets(later)[PER_MINUTE.index(later)] == 2
    assert counter.total(later + 29 * MINUTE) == 5


@pytest.mark.parametrize("back_s", [HOUR, DAY])
def test_clock_that_stays_back_is_believed_after_one_bucket(back_s):
    counter = counted(*(START + minute * MINUTE for minute in range(60)))
    now = START + 59 * MINUTE - back_s
    for minute in range(180):
        counter.add(now + minute * MINUTE)
        assert 60 <= counter.total(now + minute * MINUTE) <= 62, "never more than the truth and one bucket"
    last = PER_MINUTE.index(now + 179 * MINUTE)
    assert max(counter.buckets(now + 179 * MINUTE)) == last


@pytest.mark.parametrize("forward_s", [HOUR, DAY])
def test_clock_forward_only_expires_and_nothing_comes_back(forward_s):
    counter = counted(START, START)
    assert counter.total(START + forward_s) == 0
    assert counter.total(START) == 0, "what expired is not revived"
    hours = counted(START, window=PER_HOUR)
    assert hours.total(START + HOUR) == 1
    assert hours.total(START) == 1


def test_forward_and_back_again_does_not_gather_a_day_in_one_bucket():
    counter = RollingCounter(PER_MINUTE)
    counter.add(START + DAY)
    for minute in range(24 * 60):
        counter.add(START + minute * MINUTE)
    assert counter.total(START + (24 * 60 - 1) * MINUTE) <= 61


def test_restore_gives_back_what_is_live():
    saved = counted(START - 61 * MINUTE, START - 10 * MINUTE, START).buckets(START)
    counter = RollingCounter(PER_MINUTE)
    counter.restore(saved)
    assert counter.buckets(START) == saved
    assert counter.total(START + 55 * MINUTE) == 1


def test_restore_with_an_old_clock_loses_nothing():
    counter = RollingCounter(PER_MINUTE)
    counter.restore({PER_MINUTE.index(START): 7})
    counter.add(0.0)
    assert counter.total(START + 1) == 8


@given(
    st.sampled_from(WINDOWS),
    st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 9)), max_size=40),
)
def test_a_forward_clock_gives_the_sum_of_the_last_buckets(window, steps):
    counter = RollingCounter(window)
    now, events = START, []
    for gap, count in steps:
        now += gap * window.bucket_s / 60
        counter.add(now, count)
        events.append((window.index(now), count))
    oldest = window.index(now) - window.buckets + 1
    assert counter.total(now) == sum(count for index, count in events if index >= oldest)


@given(st.lists(st.one_of(st.floats(-2 * DAY, 2 * DAY), st.floats(-90, 90)), max_size=60))
def test_no_clock_makes_more_than_was_counted_and_reading_twice_changes_nothing(jumps):
    counter = RollingCounter(PER_MINUTE)
    now = START + 10 * DAY
    for n, jump in enumerate(jumps, 1):
        before = counter.total(now)
        now = max(now + jump, 0.0)
        counter.add(now)
        total = counter.total(now)
        assert 1 <= total <= min(n, before + 1)
        assert counter.buckets(now) == counter.buckets(now)


def test_the_day_window_keeps_thirty_days():
    counter = counted(*(START + day * DAY for day in range(40)), window=PER_DAY)
    assert counter.total(START + 39 * DAY) == 30
