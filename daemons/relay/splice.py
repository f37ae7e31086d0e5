"""The splice port: a caller and a node come in by it, and their sockets are copied into each other, byte for byte.

Back-pressure is TCP's own: an end that does not read stops its partner being read, and nobody else. What a stranger
may do here is bounded by ``RelayConfig``; without a tracker's ticket nothing is spliced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from daemons.kit.tls import read_certificate
from daemons.relay.seats import Seat, Seats, check_proof
from daemons.relay.settings import RelayConfig
from meshnet.domain.errors import Forbidden, FrameError, MeshnetError, NotFound, Overloaded
from meshnet.domain.ids import Wallet
from meshnet.domain.rates import Rates
from meshnet.domain.tickets import check_link
from meshnet.wire.relay import (
    LENGTH_BYTES,
    Greeting,
    Reach,
    Refused,
    Spliced,
    Take,
    ToSplice,
    Wanted,
    decode,
    frame_length,
    framed,
    reach_proof,
)
from meshnet.wire.tickets import open_ticket

log = logging.getLogger(__name__)

BUFFER_BYTES = 512 * 1024
"""What the relay holds for an end that reads slower than its partner sends, before it stops reading the partner: two
reads of asyncio. Raising it costs memory a splice and gains nothing on loopback (measured by bench relay)."""


class Desk:
    """All sockets of the splice port: those that wait and those that are spliced. ``now`` monotonic, ``wall`` Unix."""

    def __init__(
        self,
        config: RelayConfig,
        relay_id: str,
        seats: Seats,
        now: Callable[[], float],
        wall: Callable[[], float],
        draw: Callable[[], str],
    ) -> None:
        """``draw`` gives 32 random bytes in hex."""
        self.config = config
        self.now = now
        self.splices: set[Splice] = set()
        self.refused: Counter[str] = Counter()
        self.bytes_carried = 0
        self._relay_id = relay_id
        self._seats = seats
        self._wall = wall
        self._draw = draw
        self._trackers = config.tracker_wallets()
        self._waiting: set[End] = set()
        self._wanted: dict[str, tuple[End, Seat]] = {}
        self._leaving: dict[End, float] = {}
        self._buckets = Rates[Wallet](config.opens_per_s, config.open_burst)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def greet(self, end: End) -> Greeting:
        """A new socket. Raises Overloaded when too many have not said what they want."""
        here = sum(other.address == end.address for other in self._waiting)
        if len(self._waiting) >= self.config.max_waiting or here >= self.config.max_waiting_per_address:
            raise Overloaded("Too many connections wait here already.")
        self._waiting.add(end)
        return Greeting(relay_id=self._relay_id, nonce=self._draw())

    def hear(self, end: End, message: Reach | Take) -> None:
        """Act on what an end wants. Raises MeshnetError with the reason of the refusal."""
        match message:
            case Reach():
                self._reach(end, message)
            case Take():
                self._take(end, message.token)

    def _reach(self, end: End, ask: Reach) -> None:
        caller = check_proof(ask.public_key, ask.proof, reach_proof(end.greeting, ask.target, ask.ticket))
        read_certificate(ask.certificate, caller)
        check_link(open_ticket(ask.ticket, self._trackers), caller, Wallet(ask.target), self._wall())
        if not self._buckets.take(caller, self.now()):
            raise Overloaded(f"{caller} asks for too many links.", code="rate_limited")
        seat = self._seats.get(ask.target)
        if seat is None:
            raise NotFound(f"{ask.target} is not at this relay.", code="no_seat")
        if len(self.splices) >= self.config.max_splices or seat.splices >= self.config.max_splices_per_node:
            raise Overloaded("Too many links through this relay.")
        if sum(splice.caller.address == end.address for splice in self.splices) >= self.config.max_splices_per_address:
            raise Overloaded(f"Too many links from {end.address} through this relay.", code="too_many_from_address")
        token = self._draw()
        seat.tell(Wanted(token=token, ticket=ask.ticket, certificate=ask.certificate))
        self._wanted[token] = (end, seat)
        end.wait_for(token)

    def _take(self, end: End, token: str) -> None:
        caller, seat = self._wanted.pop(token, (None, None))
        if caller is None or seat is None:
            raise Forbidden("This token was used, or nobody waits for it any more.", code="bad_token")
        splice = Splice(caller, end, seat, self.now())
        self._waiting -= {caller, end}
        self.splices.add(splice)
        seat.splices += 1
        caller.join(splice, end, Spliced(certificate=seat.certificate))
        end.join(splice, caller, Spliced())

    def gone(self, end: End) -> None:
        """A socket ended, whatever it was doing."""
        self._waiting.discard(end)
        self._leaving.pop(end, None)
        if end.token is not None:
            self._wanted.pop(end.token, None)
        splice = end.splice
        if splice is not None and splice in self.splices:
            self.splices.discard(splice)
            splice.seat.splices -= 1
            self._leaving[splice.other(end)] = self.now()

    def refuse(self, end: End, error: MeshnetError) -> None:
        self.refused[error.code] += 1
        log.info("link refused address=%s code=%s reason=%s", end.address, error.code, error.message)
        end.close_with(Refused(code=error.code[:64], message=error.message[:512]))

    def tick(self) -> None:
        """Once a second: end what waits too long, is idle, or has carried too much."""
        now = self.now()
        for end in [end for end in self._waiting if now - end.since > self.config.handshake_s]:
            late = "The node does not dial back." if end.token else "Nothing came."
            self.refuse(end, Overloaded(late, code="node_silent" if end.token else "handshake_timeout"))
            self._waiting.discard(end)
        for splice in list(self.splices):
            idle = now - splice.used > self.config.idle_s
            if idle or splice.bytes_carried > self.config.max_splice_gib << 30:
                log.info("splice cut seat=%s reason=%s", splice.seat.wallet, "idle" if idle else "bytes")
                self.refused["idle" if idle else "bytes"] += 1
                splice.cut()
        for end in [end for end, since in self._leaving.items() if now - since > self.config.idle_s]:
            end.abort()  # It never read the last of what its partner sent.
        self._buckets.forget(now)

    def close(self) -> None:
        for splice in list(self.splices):
            splice.cut()
        for end in (*self._waiting, *self._leaving):
            end.abort()


@dataclass(slots=True, eq=False)
class Splice:
    """Two ends that are each other's."""

    caller: End
    node: End
    seat: Seat
    used: float
    """When a byte last went either way, monotonic."""
    bytes_carried: int = 0

    def other(self, end: End) -> End:
        return self.node if end is self.caller else self.caller

    def cut(self) -> None:
        self.caller.abort()
        self.node.abort()


class End(asyncio.Protocol):
    """One socket of the splice port: greets, hears one message, then copies to its partner."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._partner: End | None = None
        self._heard = self._ended = False
        self.address = ""
        self.since = desk.now()
        self.greeting: Greeting
        self.token: str | None = None
        self.splice: Splice | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        try:
            self.greeting = self._desk.greet(self)
        except MeshnetError as error:
            self._desk.refuse(self, error)
        else:
            transport.write(framed(self.greeting))

    def data_received(self, data: bytes) -> None:
        partner, splice = self._partner, self.splice
        if partner is not None and splice is not None:
            partner._transport.write(data)
            splice.bytes_carried += len(data)
            splice.seat.bytes_carried += len(data)
            self._desk.bytes_carried += len(data)
            splice.used = self._desk.now()
        elif not self._transport.is_closing():
            self._buffer += data
            self._hear()

    def _hear(self) -> None:
        try:
            if self._heard:
                raise FrameError("bytes before the splice")
            if len(self._buffer) < LENGTH_BYTES:
                return
            end = LENGTH_BYTES + frame_length(bytes(self._buffer[:LENGTH_BYTES]))
            if len(self._buffer) < end:
                return
            if len(self._buffer) > end:
                raise FrameError("bytes before the splice")
            self._heard = True
            self._desk.hear(self, decode(bytes(self._buffer[LENGTH_BYTES:end]), ToSplice))  # type: ignore[arg-type]
        except MeshnetError as error:
            self._desk.refuse(self, error)

    def wait_for(self, token: str) -> None:
        self.token = token
        self._buffer.clear()

    def join(self, splice: Splice, partner: End, message: Spliced) -> None:
        self._buffer.clear()
        self.splice, self._partner, self.token = splice, partner, None
        self._transport.write(framed(message))

    def pause_writing(self) -> None:
        if self._partner is not None and not self._partner._transport.is_closing():
            self._partner._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._partner is not None and not self._partner._transport.is_closing():
            self._partner._transport.resume_reading()

    def eof_received(self) -> bool:
        """A half-closed end may still be read from: TCP lets it, so the splice does."""
        partner = self._partner
        if partner is None:
            return False
        if not partner._transport.is_closing() and partner._transport.can_write_eof():
            partner._transport.write_eof()
        self._ended = True
        if partner._ended:
            partner._transport.close()
        return not partner._ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._desk.gone(self)
        if self._partner is not None:
            self._partner.leave()

    def leave(self) -> None:
        """The partner is gone: what it sent still goes out, then the socket closes."""
        self._transport.close()

    def close_with(self, message: Refused) -> None:
        self._transport.write(framed(message))
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
