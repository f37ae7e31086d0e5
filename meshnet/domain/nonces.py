"""Signed requests are good once: the nonces seen lately, bounded."""

from __future__ import annotations

from collections import OrderedDict

from meshnet.domain.errors import Forbidden, Overloaded
from meshnet.domain.ids import Wallet

NONCE_TTL_S = 180.0
"""A signature is good from 60 s before to 60 s after its time; three windows leave room for a clock set back by one."""
MAX_NONCES = 100_000
"""1,000 nodes with a heartbeat every 5 s make 36,000 in NONCE_TTL_S; about 20 MB when full."""


class Nonces:
    """(wallet, nonce) pairs seen within ``ttl_s``. Full, it refuses: dropping a live one would let it be replayed."""

    def __init__(self, ttl_s: float = NONCE_TTL_S, most: int = MAX_NONCES) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._seen: OrderedDict[tuple[Wallet, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def spend(self, wallet: Wallet, nonce: str, now: float) -> None:
        """``now`` is monotonic. Raises Forbidden(code="replayed") the second time, Overloaded when full."""
        while self._seen and next(iter(self._seen.values())) <= now:
            self._seen.popitem(last=False)
        if (wallet, nonce) in self._seen:
            raise Forbidden(f"This request of {wallet} was made before.", code="replayed")
        if len(self._seen) >= self._most:
            raise Overloaded("Too many signed requests at once.", retry_after_s=10.0)
        self._seen[wallet, nonce] = now + self._ttl_s
