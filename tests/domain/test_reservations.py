from __future__ import annotations

from meshnet.domain.ids import ModelKey, Revision
from meshnet.domain.reservations import MAX_RESERVATIONS, Reservation, Reservations
from meshnet.domain.shards import Shard


def wish(holder: str, start: int = 0) -> Reservation:
    return Reservation(holder, ModelKey("m"), Revision("r"), "float32", Shard(start, start + 1))


def test_a_reservation_stands_until_its_time_is_up():
    reservations = Reservations(keep_s=10)
    held = reservations.reserve(wish("a"), 100.0)
    assert held.until == 110.0
    assert reservations.live(109.9) == [held]
    assert reservations.live(110.0) == []


def test_a_sign_of_life_renews_but_does_not_revive():
    reservations = Reservations(keep_s=10)
    reservations.reserve(wish("a"), 0.0)
    assert reservations.renew("a", 9.0)
    assert reservations.live(18.0)[0].until == 19.0
    assert not reservations.renew("a", 19.0)
    assert not reservations.renew("never", 0.0)


def test_a_holder_has_one_and_may_give_it_back():
    reservations = Reservations()
    reservations.reserve(wish("a", 0), 0.0)
    reservations.reserve(wish("b", 2), 0.0)
    reservations.reserve(wish("a", 4), 0.0)
    assert [(r.holder, r.shard.start) for r in reservations.live(1.0)] == [("b", 2), ("a", 4)]
    reservations.release("b")
    reservations.release("nobody")
    assert [r.holder for r in reservations.live(1.0)] == ["a"]


def test_a_flood_of_joiners_is_bounded_and_the_oldest_goes():
    reservations = Reservations()
    for i in range(MAX_RESERVATIONS + 3):
        reservations.reserve(wish(f"w{i}"), 0.0)
    live = reservations.live(1.0)
    assert len(live) == MAX_RESERVATIONS
    assert live[0].holder == "w3"
