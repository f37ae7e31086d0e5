"""Shards promised to nodes that are not up yet, so that ten that join at once get ten different windows (ADR-0031)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshnet.domain.ids import ModelKey, Revision
from meshnet.domain.nodes import DEFAULT_BENCHMARK_TPS
from meshnet.domain.shards import Shard

RESERVATION_S = 600.0
"""How long a promise stands without a sign of life: time to fetch some GB. Longer, and a joiner that died hides its
gap from the next one for as long; a slow joiner renews it."""
MAX_RESERVATIONS = 1000
"""Beyond this the oldest goes: a flood of joiners must not fill memory."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """``holder`` is the joining node's wallet: it has one reservation at a time."""

    holder: str
    model_key: ModelKey
    revision: Revision
    dtype: str
    shard: Shard
    throughput: float = DEFAULT_BENCHMARK_TPS
    until: float = 0.0
    """Monotonic seconds; set by ``Reservations``."""


class Reservations:
    """One owner. ``now`` is monotonic seconds, so that a jumping wall clock revives and ends nothing."""

    def __init__(self, keep_s: float = RESERVATION_S) -> None:
        self.keep_s = keep_s
        self._by_holder: dict[str, Reservation] = {}

    def reserve(self, reservation: Reservation, now: float) -> Reservation:
        """Hold a shard for a joiner; another one of the same holder is replaced."""
        self._drop_expired(now)
        self._by_holder.pop(reservation.holder, None)
        if len(self._by_holder) >= MAX_RESERVATIONS:
            del self._by_holder[next(iter(self._by_holder))]
        held = replace(reservation, until=now + self.keep_s)
        self._by_holder[reservation.holder] = held
        return held

    def renew(self, holder: str, now: float) -> bool:
        """A sign of life (a fetch that goes on). False when there is nothing left to renew."""
        self._drop_expired(now)
        held = self._by_holder.get(holder)
        if held is None:
            return False
        self.reserve(held, now)
        return True

    def release(self, holder: str) -> None:
        """The node is up, or gave up. Unknown holders are ignored."""
        self._by_holder.pop(holder, None)

    def live(self, now: float) -> list[Reservation]:
        """All that still stand, oldest first."""
        self._drop_expired(now)
        return list(self._by_holder.values())

    def _drop_expired(self, now: float) -> None:
        self._by_holder = {holder: held for holder, held in self._by_holder.items() if held.until > now}
