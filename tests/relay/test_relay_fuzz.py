"""Whatever bytes come: an error or a message, never anything else, and nothing that others feel."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relay_testing import Mesh

from daemons.relay.seats import Seats
from daemons.relay.settings import RelayConfig
from daemons.relay.splice import Desk, End
from meshnet.domain.errors import FrameError
from meshnet.wire import relay as wire

KINDS = [wire.Reach, wire.Take, wire.Prove, wire.Wanted, wire.Challenge, wire.Greeting, wire.Leaving, wire.Refused]


@settings(max_examples=1000)
@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_no_bytes_do_more_than_fail(data: bytes, kind: type) -> None:
    try:
        wire.decode(data, kind)
    except FrameError:
        return
    pytest.fail(f"{data!r} became a {kind.__name__}")


@settings(max_examples=500)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda s: st.lists(s, max_size=3)))
def test_no_json_is_a_message_by_chance(value: object) -> None:
    import msgspec

    data = msgspec.json.encode({"kind": "take", "token": value})
    if not (isinstance(value, str) and len(value) == 64):
        with pytest.raises(FrameError):
            wire.decode(data, wire.Take)


class Wire(asyncio.Transport):
    """A transport that only notes what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.written = bytearray()
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_the_splice_port_takes_any_bytes_in_any_pieces(mesh: Mesh, parts: list[bytes]) -> None:
    config = RelayConfig(trackers="a" * 20)
    seats = Seats(config, mesh.clock.now)
    desk = Desk(config, "r" * 20, seats, mesh.clock.now, mesh.clock.wall, lambda: "0" * 64)
    end, transport = End(desk), Wire()
    end.connection_made(transport)
    for part in parts:
        end.data_received(part)
    assert not desk.splices
    assert len(end._buffer) <= wire.MAX_MESSAGE_BYTES + 300
    end.connection_lost(None)
    assert desk.n_waiting == 0
