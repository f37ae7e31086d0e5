"""A tracker's slice of the demand, and the laws by which slices of one tracker merge (ADR-0030, ADR-0042).

Owns the bounds a stranger's slice must keep. Does not know who sends it or when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import is_model_key
from meshnet.domain.rolling import WINDOWS, Window

MAX_MODELS = 1000
"""Models counted per tracker. A model costs up to 114 buckets here and in every slice: 1,000 are about 2 MB of JSON.
Raising it raises what one hostile client, by asking for made-up names, can make every peer store."""
MAX_COUNT = 1_000_000_000
"""Requests in one bucket, beyond what a day on one tracker can hold; a larger number is a mistake or an attack."""
MAX_SEQUENCE = 2**53 - 1
"""Largest generation and seq: what JSON readers keep exact."""
MAX_ID_CHARS = 64
MAX_URL_CHARS = 2048
AHEAD_BUCKETS = 1
"""A peer's bucket may be this far ahead of our clock (skew at a border). What is further ahead is dropped on arrival;
it comes again with the next exchange, so it counts when its time has come."""

Buckets = Mapping[str, Mapping[str, Mapping[int, int]]]
"""model -> window name -> absolute bucket index -> count."""

WINDOW_BY_NAME: dict[str, Window] = {window.name: window for window in WINDOWS}


@dataclass(frozen=True, slots=True)
class Slice:
    """One tracker's own counts. ``tracker_id`` is its identity for ever (the fingerprint of the key that signs),
    ``url`` only where it can be reached.

    ``generation`` rises with every start, ``seq`` with every slice made: of two slices of one tracker the one with the
    larger (generation, seq) replaces the other. Raises InvalidRequest when any bound is broken.
    """

    tracker_id: str
    generation: int
    seq: int
    url: str
    buckets: Buckets = field(default_factory=dict)
    signed: str = ""
    """The text its origin signed, whole, to be passed on; ``buckets`` may hold less of it. "": our own."""

    def __post_init__(self) -> None:
        if not 0 < len(self.tracker_id) <= MAX_ID_CHARS or len(self.url) > MAX_URL_CHARS:
            raise InvalidRequest(
                f"{self.tracker_id[:MAX_ID_CHARS]!r}: tracker_id or url is empty or too long", param="tracker_id"
            )
        _check_number("generation", self.generation, MAX_SEQUENCE)
        _check_number("seq", self.seq, MAX_SEQUENCE)
        _check_buckets(self.buckets)

    @property
    def age_key(self) -> tuple[int, int]:
        return self.generation, self.seq

    @property
    def rank(self) -> tuple[int, int, str]:
        """Of one tracker's slices the highest stands, on every tracker the same. The text decides only between two
        that a tracker signed under one number, which no honest one does."""
        return self.generation, self.seq, self.signed


def next_generation(stored: int | None, now_wall: float) -> int:
    """The generation of a start: above the stored one, and by the clock where storing failed last time."""
    return max((stored or 0) + 1, int(now_wall))


def merge(mine: Slice, theirs: Slice) -> Slice:
    """Join of two slices of ONE tracker: idempotent, commutative, associative.

    The higher rank wins whole. Equal ones are the same slice, read by a clock of another time: the larger count of
    each bucket. Raises InvalidRequest for different trackers.
    """
    if mine.tracker_id != theirs.tracker_id:
        raise InvalidRequest(f"slices of {mine.tracker_id} and {theirs.tracker_id} do not merge: they add up")
    if mine.rank != theirs.rank:
        return max(mine, theirs, key=lambda slice_: slice_.rank)
    joined = {
        model: {
            window: _join_counts(mine.buckets, theirs.buckets, model, window)
            for window in _keys(mine.buckets.get(model, {}), theirs.buckets.get(model, {}))
        }
        for model in _keys(mine.buckets, theirs.buckets)
    }
    # Two trackers with 1,000 models each under one id: keep to the bound, the same way on every side.
    return replace(mine, url=max(mine.url, theirs.url), buckets=dict(list(joined.items())[:MAX_MODELS]))


def live_part(slice_: Slice, now_wall: float) -> Slice:
    """The slice without buckets that are expired, or too far ahead, by our clock."""
    buckets = {
        model: {window: live for window, counts in windows.items() if (live := _live(window, counts, now_wall))}
        for model, windows in slice_.buckets.items()
    }
    return replace(slice_, buckets={model: windows for model, windows in buckets.items() if windows})


def _live(window: str, counts: Mapping[int, int], now_wall: float) -> dict[int, int]:
    # A peer a border ahead of us has moved on: one window's worth of buckets counts, never one more.
    newest = WINDOW_BY_NAME[window].index(now_wall)
    newest += AHEAD_BUCKETS if newest + AHEAD_BUCKETS in counts else 0
    return {index: count for index, count in counts.items() if WINDOW_BY_NAME[window].is_live(index, newest)}


def _join_counts(mine: Buckets, theirs: Buckets, model: str, window: str) -> dict[int, int]:
    a, b = mine.get(model, {}).get(window, {}), theirs.get(model, {}).get(window, {})
    joined = {index: max(a.get(index, 0), b.get(index, 0)) for index in a.keys() | b.keys()}
    newest_first = sorted(joined, reverse=True)
    return {index: joined[index] for index in newest_first[: WINDOW_BY_NAME[window].buckets + AHEAD_BUCKETS]}


def _keys(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    return sorted(a.keys() | b.keys())


def _check_buckets(buckets: Buckets) -> None:
    if len(buckets) > MAX_MODELS:
        raise InvalidRequest(f"a slice of {len(buckets)} models; at most {MAX_MODELS} are taken", param="buckets")
    for model, windows in buckets.items():
        if not is_model_key(model):
            raise InvalidRequest(f"{model[:100]!r} in a slice is no model_key", param="buckets")
        for name, counts in windows.items():
            window = WINDOW_BY_NAME.get(name)
            if window is None or len(counts) > window.buckets + AHEAD_BUCKETS:
                raise InvalidRequest(f"{model}: window {name[:100]!r} is unknown or too long", param="buckets")
            for index, count in counts.items():
                _check_number(f"{model} {name} index", index, MAX_SEQUENCE)
                _check_number(f"{model} {name} count", count, MAX_COUNT)


def _check_number(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number of 0..{most}", param="buckets")
