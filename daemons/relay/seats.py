"""Who is at the relay: one seat a wallet, proved by its key. Knows no sockets; messages to a node go into its queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from daemons.kit.tls import read_certificate
from daemons.relay.settings import RelayConfig
from meshnet.domain.errors import Forbidden, Overloaded
from meshnet.domain.ids import Wallet, wallet_of
from meshnet.wire.relay import Challenge, Prove, Refused, seat_proof

MAX_QUEUED = 64
"""Messages a node has not taken yet; each is a link somebody waits for, for handshake_s at most."""
SWAPS = 3
SWAP_WINDOW_S = 60.0
"""More than SWAPS takeovers of one seat in this time: two processes fight over one key, and the present one stays."""


@dataclass(slots=True, eq=False)
class Seat:
    """A node's place. ``queue`` is drained by its control connection; ``ended`` says why that is to close."""

    wallet: Wallet
    name: str
    address: str
    certificate: str
    since: float
    queue: asyncio.Queue[Struct] = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED))
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    splices: int = 0
    bytes_carried: int = 0

    def tell(self, message: Struct) -> None:
        """Raises Overloaded when the node takes nothing."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            raise Overloaded(f"{self.wallet} does not read what the relay tells it.", code="node_busy") from None


class Seats:
    """All seats; ``now`` is monotonic."""

    def __init__(self, config: RelayConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._by_wallet: dict[Wallet, Seat] = {}
        self._swaps: dict[Wallet, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._by_wallet)

    def __iter__(self):
        return iter(list(self._by_wallet.values()))

    def get(self, wallet: str) -> Seat | None:
        return self._by_wallet.get(Wallet(wallet))

    def sit(self, challenge: Challenge, prove: Prove, address: str) -> Seat:
        """Check the proof and give the seat. The same key takes over its own older seat, which is told and closed.

        Raises Forbidden (bad_proof, bad_certificate, duplicate_key) or Overloaded; nothing is kept then.
        """
        wallet = check_proof(prove.public_key, prove.proof, seat_proof(challenge, bytes.fromhex(prove.public_key)))
        read_certificate(prove.certificate, wallet)
        old = self._by_wallet.get(wallet)
        if old is None:
            self._check_room(address)
        else:
            self._check_swaps(wallet)
            old.queue = asyncio.Queue(MAX_QUEUED)
            old.tell(Refused(code="replaced", message="Another connection with this wallet took the seat."))
            old.ended.set()
        seat = Seat(wallet, prove.name, address, prove.certificate, self._now())
        self._by_wallet[wallet] = seat
        return seat

    def leave(self, seat: Seat) -> None:
        """A control connection ended; a seat that was taken over meanwhile stays the newcomer's."""
        seat.ended.set()
        if self._by_wallet.get(seat.wallet) is seat:
            del self._by_wallet[seat.wallet]

    def forget_swaps(self) -> None:
        """Drop what is too old to matter: called by the relay's round."""
        limit = self._now() - SWAP_WINDOW_S
        for wallet in [w for w, times in self._swaps.items() if times[-1] < limit]:
            del self._swaps[wallet]

    def _check_room(self, address: str) -> None:
        if len(self._by_wallet) >= self._config.max_nodes:
            raise Overloaded(f"All {self._config.max_nodes} seats of this relay are taken.", retry_after_s=60.0)
        if sum(seat.address == address for seat in self) >= self._config.max_nodes_per_address:
            raise Overloaded(
                f"{self._config.max_nodes_per_address} nodes at {address} have seats already.", retry_after_s=60.0
            )

    def _check_swaps(self, wallet: Wallet) -> None:
        times = self._swaps.setdefault(wallet, deque())
        while times and times[0] < self._now() - SWAP_WINDOW_S:
            times.popleft()
        if len(times) >= SWAPS:
            raise Forbidden(
                f"Two processes fight over wallet {wallet}: stop one, or give it its own wallet.", code="duplicate_key"
            )
        times.append(self._now())


def check_proof(public_key: str, proof: str, signed: bytes) -> Wallet:
    """The wallet of a key that signed this. Raises Forbidden(code="bad_proof")."""
    raw = bytes.fromhex(public_key)
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(proof), signed)
    except (InvalidSignature, ValueError):
        raise Forbidden(f"The proof is not by key {public_key[:16]}….", code="bad_proof") from None
    return wallet_of(raw)
