"""Demand: how many requests a minute each model gets, here and on the other trackers (ADR-0013, ADR-0030).

``DemandStats`` owns this tracker's own slice and the latest slice of every peer, and adds them up. It does not know
HTTP or SQLite: slices and rows are plain values that others carry. Times are wall seconds, handed in.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Literal

from meshnet.domain.ids import is_model_key
from meshnet.domain.rolling import PER_DAY, PER_HOUR, PER_MINUTE, WINDOWS, RollingCounter
from meshnet.domain.slices import MAX_COUNT, MAX_MODELS, MAX_SEQUENCE, WINDOW_BY_NAME, Buckets, Slice, live_part, merge

MAX_PEERS = 64
"""Peer slices kept. Beyond it new trackers are added up only in the place of those that came from a peer which brought
more; raising it raises memory by up to 6 MB each, with the text that is passed on."""
REMEMBERED_CALLS = 10_000
"""Call ids kept so that retries and re-routes count once: about 1 MB; at 100 requests/s they reach back 100 s."""

MergeOutcome = Literal["merged", "old", "own", "twin", "expired", "full"]
"""What became of a slice: taken; nothing new; our own coming back (refused); our own id under a state we never had,
so another tracker runs with a copy of our id (refused, tell the operator); no live bucket; no room for a peer."""

_STATS_NAMES = (("last_hour", PER_MINUTE), ("last_day", PER_HOUR), ("last_month", PER_DAY))


BucketRow = tuple[str, str, int, int, int]
"""One slot as a row of ``model_rpm_buckets``: model, window, bucket_idx (the slot), bucket_epoch (the absolute index),
count."""


class DemandStats:
    """What is asked for. One owner calls it from one thread; snapshots go out as plain values."""

    def __init__(self, tracker_id: str, generation: int, url: str) -> None:
        self.tracker_id = tracker_id
        self.generation = generation
        self.url = url
        """Only an address: it may change at any time and no count moves."""
        self._seq = 0
        self._counters: dict[str, dict[str, RollingCounter]] = {}
        self._seen_calls: OrderedDict[str, None] = OrderedDict()
        self._peers: dict[str, Slice] = {}
        self._via: dict[str, str] = {}
        """Who brought each of them first, the newest last."""

    # Counting

    def record(self, model_key: str, call_id: str, now_wall: float) -> bool:
        """Count a request on arrival, served or not; False when it was counted before or cannot be counted."""
        if call_id in self._seen_calls or not is_model_key(model_key):
            return False
        counters = self._counters_of(model_key, now_wall)
        if counters is None:
            return False
        self._seen_calls[call_id] = None
        if len(self._seen_calls) > REMEMBERED_CALLS:
            self._seen_calls.popitem(last=False)
        for counter in counters.values():
            counter.add(now_wall)
        return True

    def get_combined_stats(self, now_wall: float) -> dict[str, dict[str, float]]:
        """Own and peers' demand: model -> ``rpm_last_hour|day|month`` and ``requests_last_hour|day|month``."""
        return _stats([self._own_buckets(now_wall), *(s.buckets for s in self.peer_slices(now_wall))])

    def get_own_stats(self, now_wall: float) -> dict[str, dict[str, float]]:
        """The same of this tracker alone."""
        return _stats([self._own_buckets(now_wall)])

    def rpm_since(self, model_key: str, started_wall: float, now_wall: float) -> float:
        """For display only: own requests of the last hour / the minutes we are up (1 to 60). Scores use the record's
        rpm, which divides by the whole hour and so starts low."""
        counters = self._counters.get(model_key)
        minutes = min(max((now_wall - started_wall) / 60, 1.0), PER_MINUTE.minutes)
        return counters[PER_MINUTE.name].total(now_wall) / minutes if counters else 0.0

    # Gossip

    def make_slice(self, now_wall: float) -> Slice:
        """Our own slice, under the next seq: the only counts we vouch for."""
        self._seq += 1
        return Slice(self.tracker_id, self.generation, self._seq, self.url, self._own_buckets(now_wall))

    def slices_to_send(self, now_wall: float) -> list[Slice]:
        """Our own slice first, then the peers' as they came: never a sum."""
        return [self.make_slice(now_wall), *self.peer_slices(now_wall)]

    def merge_slice(self, slice_: Slice, now_wall: float, via: str = "") -> MergeOutcome:
        """Take in a peer's slice, in any order, any number of times. ``via``: who brought it, by something that he does
        not choose himself."""
        if slice_.tracker_id == self.tracker_id:
            return "twin" if slice_.age_key > (self.generation, self._seq) else "own"
        live = live_part(slice_, now_wall)
        known = self._peers.get(slice_.tracker_id)
        merged = live if known is None else merge(known, live)
        if merged == known:
            return "old"
        if known is None and not live.buckets:
            return "expired"
        if known is None and not self._has_room(via, now_wall):
            return "full"
        self._peers[slice_.tracker_id] = merged
        self._via.setdefault(slice_.tracker_id, via)
        return "merged"

    def peer_slices(self, now_wall: float) -> list[Slice]:
        """What still counts of each peer, by tracker_id. A peer that is gone fades with its windows."""
        live = (live_part(slice_, now_wall) for slice_ in self._peers.values())
        return sorted((slice_ for slice_ in live if slice_.buckets), key=lambda slice_: slice_.tracker_id)

    def forget_expired(self, now_wall: float) -> None:
        """Drop models and peers without a live bucket. Call it now and then (each save)."""
        self._counters = {m: c for m, c in self._counters.items() if any(w.total(now_wall) for w in c.values())}
        self._peers = {slice_.tracker_id: slice_ for slice_ in self.peer_slices(now_wall)}
        self._via = {tracker_id: via for tracker_id, via in self._via.items() if tracker_id in self._peers}

    # Rows

    def export_rows(self, now_wall: float) -> list[BucketRow]:
        """Every live bucket of our own slice, to replace the table in one transaction."""
        return [
            (model, window, index % WINDOW_BY_NAME[window].buckets, index, count)
            for model, windows in self._own_buckets(now_wall).items()
            for window, counts in windows.items()
            for index, count in counts.items()
        ]

    def import_rows(self, rows: Iterable[BucketRow], now_wall: float) -> int:
        """Add saved rows, before anything is counted. Expired ones are dropped; returns how many were unreadable.

        Rows dated after ``now_wall`` are kept, as if the clock had gone back: a machine that boots with an old clock
        must not lose them. A row whose slot and index do not belong together is corrupt."""
        wanted: dict[tuple[str, str], dict[int, int]] = {}
        bad = 0
        for row in rows:
            if _is_sound(row):
                model, window, _, index, count = row
                wanted.setdefault((model, window), {})[index] = count
            else:
                bad += 1
        for (model, window), counts in wanted.items():
            newest = WINDOW_BY_NAME[window].index(now_wall)
            kept = {i: n for i, n in counts.items() if i > newest - WINDOW_BY_NAME[window].buckets}
            counters = self._counters_of(model, now_wall) if kept else None
            if counters is not None:
                counters[window].restore(kept)
        return bad

    # Private

    def _counters_of(self, model_key: str, now_wall: float) -> dict[str, RollingCounter] | None:
        if model_key not in self._counters:
            if len(self._counters) >= MAX_MODELS:
                self.forget_expired(now_wall)
            if len(self._counters) >= MAX_MODELS:
                return None
            self._counters[model_key] = {window.name: RollingCounter(window) for window in WINDOWS}
        return self._counters[model_key]

    def _own_buckets(self, now_wall: float) -> dict[str, dict[str, dict[int, int]]]:
        buckets = {
            model: {name: live for name, counter in counters.items() if (live := _capped(counter, now_wall))}
            for model, counters in self._counters.items()
        }
        return {model: windows for model, windows in buckets.items() if windows}

    def _has_room(self, via: str, now_wall: float) -> bool:
        if len(self._peers) >= MAX_PEERS:
            self.forget_expired(now_wall)
        return len(self._peers) < MAX_PEERS or self._make_room(via)

    def _make_room(self, via: str) -> bool:
        """Who brought most gives up the newest of his, as long as he keeps no fewer than ``via`` has then: a peer that
        makes up trackers keeps nobody else's out, and equals do not push each other out in turn."""
        brought = Counter(self._via.values())
        ((most, count),) = brought.most_common(1)
        if count < brought[via] + 2:
            return False
        newest = next(tracker_id for tracker_id in reversed(self._via) if self._via[tracker_id] == most)
        del self._peers[newest], self._via[newest]
        return True


def _stats(parts: Iterable[Buckets]) -> dict[str, dict[str, float]]:
    stats: dict[str, dict[str, float]] = {}
    for buckets in parts:
        for model, windows in buckets.items():
            row = stats.setdefault(model, {f"requests_{name}": 0 for name, _ in _STATS_NAMES})
            for name, window in _STATS_NAMES:
                row[f"requests_{name}"] += sum(windows.get(window.name, {}).values())
    for row in stats.values():
        for name, window in _STATS_NAMES:
            row[f"rpm_{name}"] = row[f"requests_{name}"] / window.minutes
    return stats


def _capped(counter: RollingCounter, now_wall: float) -> dict[int, int]:
    return {index: min(count, MAX_COUNT) for index, count in counter.buckets(now_wall).items()}


def _is_sound(row: BucketRow) -> bool:
    model, name, slot, index, count = row
    window = WINDOW_BY_NAME.get(name)
    if window is None or not is_model_key(model) or any(type(number) is not int for number in (slot, index, count)):
        return False
    return 0 <= index <= MAX_SEQUENCE and 0 <= count <= MAX_COUNT and slot == index % window.buckets
