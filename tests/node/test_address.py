"""Where a node says it is: directly, by a relay when the tracker cannot dial it, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemons.node.uplinks import Address
from meshnet.wire.messages import HeartbeatResponse, RegisterResponse

DIRECT, RELAY = "http://192.0.2.1:7071", "ws://192.0.2.9:7090"


class Seats:
    """Uplinks whose seats the test takes."""

    def __init__(self) -> None:
        self.relays: list[str] = []
        self.seat = ""

    def __len__(self) -> int:
        return len(self.relays)

    def add(self, relay_url: str, server: Callable[[], asyncio.BaseProtocol]) -> None:
        self.relays.append(relay_url)

    def url(self) -> str:
        return self.seat


def address(seats: Seats, *relays: str) -> Address:
    return Address(DIRECT, seats, asyncio.Protocol, relays)  # type: ignore[arg-type]  # what it asks of uplinks is here


def registered(*relays: str) -> RegisterResponse:
    return RegisterResponse(
        node_id=f"{'a' * 20}.0-9", epoch=1, heartbeat_interval_s=5.0, tracker_id="t", tracker_boot="b", relays=relays
    )


def test_with_relays_of_its_owner_it_is_where_they_are() -> None:
    seats = Seats()
    where = address(seats, RELAY)
    assert seats.relays == [RELAY]
    assert where.now() == ""
    seats.seat = "relay://192.0.2.9:7091/" + "a" * 20
    assert where.now() == seats.seat


def test_unreachable_it_goes_to_the_trackers_relays_and_comes_back() -> None:
    seats = Seats()
    where = address(seats)
    where.on_registered(registered(RELAY))
    assert where.now() == DIRECT
    where.on_beat(HeartbeatResponse(epoch=1, unreachable=True))
    seats.seat = "relay://192.0.2.9:7091/" + "a" * 20
    assert (seats.relays, where.now()) == ([RELAY], seats.seat)
    where.on_beat(HeartbeatResponse(epoch=1, has_direct_way=True))
    assert where.now() == DIRECT


def test_unreachable_without_any_relay_it_stays_and_hopes() -> None:
    where = address(Seats())
    where.on_registered(registered())
    where.on_beat(HeartbeatResponse(epoch=1, unreachable=True))
    assert where.now() == DIRECT
