from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.demand import MAX_PEERS, REMEMBERED_CALLS, DemandStats
from meshnet.domain.rolling import PER_DAY, PER_HOUR, PER_MINUTE
from meshnet.domain.slices import MAX_COUNT, MAX_MODELS, Slice

NOW = 1_750_000_020.0
MINUTE, DAY = 60.0, 86_400.0


def tracker(name: str = "a", generation: int = 1, url: str | None = None) -> DemandStats:
    return DemandStats(name, generation, url or f"http://{name}")


def ask(stats: DemandStats, n: int, now: float = NOW, model: str = "m", prefix: str = "call") -> None:
    for i in range(n):
        assert stats.record(model, f"{prefix}-{stats.tracker_id}-{stats.generation}-{now}-{i}", now)


def last_hour(stats: DemandStats, now: float = NOW, model: str = "m") -> float:
    return stats.get_combined_stats(now).get(model, {}).get("requests_last_hour", 0)


def gossip(a: DemandStats, b: DemandStats, now: float = NOW) -> None:
    for slice_ in a.slices_to_send(now):
        b.merge_slice(slice_, now)
    for slice_ in b.slices_to_send(now):
        a.merge_slice(slice_, now)


def restarted(stats: DemandStats, rows, now: float, url: str | None = None) -> DemandStats:
    fresh = tracker(stats.tracker_id, stats.generation + 1, url)
    assert fresh.import_rows(rows, now) == 0
    return fresh


def test_ten_rpm_here_and_five_there_are_fifteen():
    a, b = tracker("a"), tracker("b")
    ask(a, 600)
    ask(b, 300)
    gossip(a, b)
    assert a.get_own_stats(NOW)["m"]["rpm_last_hour"] == 10.0
    assert a.get_combined_stats(NOW)["m"]["rpm_last_hour"] == 15.0
    assert b.get_combined_stats(NOW)["m"]["rpm_last_hour"] == 15.0
    row = a.get_combined_stats(NOW)["m"]
    assert (row["rpm_last_day"], row["rpm_last_month"]) == (900 / PER_HOUR.minutes, 900 / PER_DAY.minutes)


def test_a_call_counts_once_however_often_it_is_tried():
    stats = tracker()
    assert stats.record("m", "call-1", NOW)
    assert not stats.record("m", "call-1", NOW + 1)
    assert not stats.record("m", "call-1", NOW + 120)
    assert last_hour(stats) == 1


def test_remembered_calls_are_bounded():
    stats = tracker()
    ask(stats, REMEMBERED_CALLS + 5)
    assert len(stats._seen_calls) == REMEMBERED_CALLS


def test_a_made_up_name_is_not_counted_and_names_are_bounded():
    stats = tracker()
    assert not stats.record("../../etc", "call-0", NOW)
    for i in range(MAX_MODELS):
        assert stats.record(f"m{i}", f"call-{i}", NOW)
    assert not stats.record("one-more", "call-x", NOW)
    assert stats.record("m7", "call-y", NOW), "known models go on"
    assert stats.record("one-more", "call-x", NOW + 31 * DAY), "room comes back when old names expire"


def test_rpm_since_start_is_for_display_only():
    stats = tracker()
    ask(stats, 30)
    assert stats.rpm_since("m", NOW - 120, NOW) == 15.0
    assert stats.rpm_since("m", NOW, NOW) == 30.0
    assert stats.rpm_since("m", NOW - 10 * DAY, NOW) == 0.5
    assert stats.rpm_since("other", NOW, NOW) == 0.0
    assert stats.get_own_stats(NOW)["m"]["rpm_last_hour"] == 0.5


def test_own_slice_is_refused_and_a_twin_is_named():
    stats = tracker("a", generation=3)
    ask(stats, 5)
    mine = stats.make_slice(NOW)
    assert stats.merge_slice(mine, NOW) == "own"
    assert stats.merge_slice(replace(mine, generation=2, seq=99), NOW) == "own"
    assert stats.merge_slice(replace(mine, seq=mine.seq + 1, url="http://clone"), NOW) == "twin"
    assert last_hour(stats) == 5


def test_outcomes_of_a_merge():
    stats, peer = tracker("a"), tracker("b")
    assert stats.merge_slice(peer.make_slice(NOW), NOW) == "expired"
    ask(peer, 2)
    slice_ = peer.make_slice(NOW)
    assert stats.merge_slice(slice_, NOW) == "merged"
    assert stats.merge_slice(slice_, NOW) == "old"
    assert stats.merge_slice(replace(slice_, seq=0), NOW) == "old"
    assert stats.merge_slice(replace(slice_, tracker_id="c"), NOW + 31 * DAY) == "expired"


def test_peers_are_bounded():
    stats, peer = tracker("a"), tracker("b")
    ask(peer, 1)
    slice_ = peer.make_slice(NOW)
    outcomes = [stats.merge_slice(replace(slice_, tracker_id=f"p{i}"), NOW) for i in range(MAX_PEERS + 1)]
    assert outcomes == ["merged"] * MAX_PEERS + ["full"]
    assert stats.merge_slice(replace(slice_, tracker_id="p0", seq=9), NOW) == "merged", "known peers go on"


def test_who_brought_most_gives_way_until_all_have_their_share():
    stats, peer = tracker("a"), tracker("b")
    ask(peer, 1)
    slice_ = peer.make_slice(NOW)

    def bring(via: str, count: int) -> list[str]:
        return [stats.merge_slice(replace(slice_, tracker_id=f"{via}{i}"), NOW, via) for i in range(count)]

    assert bring("greedy", MAX_PEERS) == ["merged"] * MAX_PEERS
    assert bring("x", 2) == ["merged"] * 2
    assert "greedy0" in {s.tracker_id for s in stats.peer_slices(NOW)}, "its newest went"
    assert bring("greedy", MAX_PEERS).count("full") == 2, "and does not come back in turn"
    assert bring("x", MAX_PEERS).count("merged") == MAX_PEERS // 2 - 2
    assert len(stats.peer_slices(NOW)) == MAX_PEERS


def test_a_dead_peer_fades_with_its_windows_and_is_dropped():
    a, b = tracker("a"), tracker("b")
    ask(b, 60)
    gossip(a, b)
    assert last_hour(a, NOW + 59 * MINUTE) == 60
    assert last_hour(a, NOW + 60 * MINUTE) == 0
    assert a.get_combined_stats(NOW + DAY)["m"]["requests_last_month"] == 60
    assert a.get_combined_stats(NOW + 30 * DAY) == {}
    a.forget_expired(NOW + 30 * DAY)
    assert a._peers == {}


def test_an_address_is_no_identity():
    a, b = tracker("a"), tracker("b")
    ask(b, 10)
    gossip(a, b)
    for url in ("http://b/", "http://127.0.0.1:8400", "https://b.example"):
        b.url = url
        gossip(a, b)
    assert last_hour(a) == 10
    assert [s.url for s in a.peer_slices(NOW)] == ["https://b.example"]


@pytest.mark.parametrize("skew_s", [-DAY, -300.0, -30.0, 30.0, 300.0, DAY])
def test_a_skewed_peer_is_never_counted_twice_nor_for_ever(skew_s):
    a, b = tracker("a"), tracker("b")
    for minute in range(180):
        now = NOW + minute * MINUTE
        ask(b, 1, now + skew_s)
        for slice_ in b.slices_to_send(now + skew_s):
            a.merge_slice(slice_, now)
        assert last_hour(a, now) <= min(minute + 1, 60)
    assert last_hour(a, NOW + (180 + 61) * MINUTE + abs(skew_s)) == 0


def test_rows_are_the_records_columns_and_come_back():
    stats = tracker()
    ask(stats, 3)
    ask(stats, 2, NOW + MINUTE)
    rows = stats.export_rows(NOW + MINUTE)
    index = PER_MINUTE.index(NOW)
    assert ("m", "per_minute", index % 60, index, 3) in rows
    assert sum(count for _, window, _, _, count in rows if window == "per_day") == 5
    back = restarted(stats, rows, NOW + 2 * MINUTE)
    assert back.get_combined_stats(NOW + 2 * MINUTE) == stats.get_combined_stats(NOW + 2 * MINUTE)
    assert sorted(back.export_rows(NOW + 2 * MINUTE)) == sorted(stats.export_rows(NOW + 2 * MINUTE))


def test_expired_rows_are_dropped_and_corrupt_ones_told():
    stats = tracker()
    ask(stats, 3)
    rows = stats.export_rows(NOW)
    late = tracker("a", 2)
    assert late.import_rows(rows, NOW + 40 * DAY) == 0
    assert late.export_rows(NOW + 40 * DAY) == []
    bad = [
        ("m", "per_minute", 0, 7, 1),
        ("m", "per_year", 7, 7, 1),
        ("../m", "per_minute", 7, 7, 1),
        ("m", "per_minute", 7, 7, -1),
        ("m", "per_minute", 7, 7, MAX_COUNT + 1),
        ("m", "per_minute", 7, 7, None),
        ("m", "per_minute", 7.0, 7.0, 1.0),
    ]
    assert tracker().import_rows(bad, 0.0) == len(bad)  # type: ignore[arg-type]


def test_a_full_bucket_still_makes_a_slice():
    stats = tracker()
    index = PER_MINUTE.index(NOW)
    stats.import_rows([("m", "per_minute", index % 60, index, MAX_COUNT)], NOW)
    ask(stats, 1)
    assert stats.make_slice(NOW).buckets["m"]["per_minute"][index] == MAX_COUNT


def test_a_boot_with_an_old_clock_keeps_the_rows():
    stats = tracker()
    ask(stats, 9)
    back = restarted(stats, stats.export_rows(NOW), 0.0)
    ask(back, 1, 5.0)
    assert last_hour(back, NOW + 30) == 10


def test_a_thousand_models_come_back():
    stats = tracker()
    for i in range(MAX_MODELS):
        stats.record(f"m{i}", f"call-{i}", NOW)
    back = restarted(stats, stats.export_rows(NOW), NOW)
    assert len(back.get_combined_stats(NOW)) == MAX_MODELS


def test_three_trackers_in_a_ring_one_restarted_from_old_rows_one_moved():
    """Never above the truth; at the end short of it by no more than the 40 s that were not saved."""
    names = ("a", "b", "c")
    mesh = {name: tracker(name) for name in names}
    rng = Random(4)
    truth, lost, rows = 0, 0, []
    for second in range(100):
        now = NOW + second
        for name in names:
            ask(mesh[name], 10, now)
        truth += 30
        if second == 20:
            rows = mesh["b"].export_rows(now)
        if 20 < second <= 60:
            lost += 10
        if second == 60:
            mesh["b"] = restarted(mesh["b"], rows, now)
        if second == 80:
            mesh["c"].url = "http://elsewhere"
        if second % 10 == 9:
            for name, peer in zip(names, ("b", "c", "a"), strict=True):
                if rng.random() < 0.8:
                    gossip(mesh[name], mesh[peer], now)
        assert all(last_hour(stats, now) <= truth for stats in mesh.values())
    for _ in range(3):
        for name, peer in zip(names, ("b", "c", "a"), strict=True):
            gossip(mesh[name], mesh[peer], NOW + 100)
    assert lost == 400
    assert [last_hour(stats, NOW + 100) for stats in mesh.values()] == [truth - lost] * 3


@given(
    counts=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    deliveries=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100), st.booleans()), max_size=40),
)
def test_any_order_duplication_and_loss_then_one_round_gives_the_truth(counts, deliveries):
    mesh = [tracker(name) for name in "abc"]
    in_flight: list[Slice] = []
    for i, (target, pick, more) in enumerate(deliveries):
        if more:
            ask(mesh[target], counts[target], NOW, prefix=f"r{i}")
            counts = [n + 1 for n in counts]
            in_flight += mesh[target].slices_to_send(NOW)
        elif in_flight:
            mesh[target].merge_slice(in_flight[pick % len(in_flight)], NOW)
        truth = sum(
            last for stats in mesh for last in [stats.get_own_stats(NOW).get("m", {}).get("requests_last_hour", 0)]
        )
        assert all(last_hour(stats) <= truth for stats in mesh)
    for slice_ in [stats.make_slice(NOW) for stats in mesh]:
        for stats in mesh:
            stats.merge_slice(slice_, NOW)
    own = [stats.get_own_stats(NOW).get("m", {}).get("requests_last_hour", 0) for stats in mesh]
    assert [last_hour(stats) for stats in mesh] == [sum(own)] * 3


def test_self_peering_and_loops_do_not_grow():
    mesh = [tracker(name) for name in "abc"]
    for stats in mesh:
        ask(stats, 7)
    for _ in range(20):
        for i, stats in enumerate(mesh):
            gossip(stats, stats)
            gossip(stats, mesh[(i + 1) % 3])
    assert [last_hour(stats) for stats in mesh] == [21, 21, 21]
