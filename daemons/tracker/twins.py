"""Wallets that two live processes claim at once: found by a lease that goes back and forth between them.

A process that was restarted has a new boot and never comes back with its old one; so a lease that returns to a boot
that had lost it shows two processes. A crash loop is no such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from meshnet.domain.ids import Wallet

RETURNS = 3
"""Times that a lease comes back to a process that had lost it, until both are left out: the fourth change of hands.
Fewer would punish the one overlap of a clumsy restart."""
WITHIN_S = 60.0
"""Two nodes that heartbeat every 5 s take the lease from each other about every 3 s."""
QUIET_S = 15.0
"""As long as a lease lives without heartbeats: who did not ask in this time is gone. A node that is refused asks every
5 s at least."""
MOST_BOOTS = 8
"""Processes remembered of one wallet: two fight, some more may have been restarted in the meantime."""


@dataclass(slots=True)
class _Claims:
    heard: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each boot asked last, and at which url it is."""
    holder: str = ""
    returned: list[float] = field(default_factory=list)
    since: float | None = None


class Twins:
    """Told of each registration before it is taken. ``now`` is monotonic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._claims: dict[Wallet, _Claims] = {}

    def claim(self, wallet: Wallet, boot: str, url: str) -> bool:
        """A process asks for the wallet's lease. True if that shows that another one lives, and quarantine begins."""
        now, claims = self._now(), self._claims.setdefault(wallet, _Claims())
        had_it = boot in claims.heard
        _hear(claims, boot, url, now)
        if claims.since is not None:
            if now - claims.since < QUIET_S or _others(claims, boot, now):
                return False
            claims.since, claims.holder, claims.returned = None, boot, []
        if had_it and boot != claims.holder:
            claims.returned = [*(at for at in claims.returned if now - at <= WITHIN_S), now]
        claims.holder = boot
        if len(claims.returned) < RETURNS:
            return False
        claims.since = now
        return True

    def is_quarantined(self, wallet: Wallet) -> bool:
        claims = self._claims.get(wallet)
        return claims is not None and claims.since is not None

    def urls(self, wallet: Wallet) -> list[str]:
        """Where those who asked lately are, the latest first."""
        claims, now = self._claims.get(wallet, _Claims()), self._now()
        return [url for at, url in sorted(claims.heard.values(), reverse=True) if now - at <= WITHIN_S]

    def forget(self, live: Container[Wallet]) -> None:
        """Drop wallets without a lease that nobody asked for lately."""
        now = self._now()
        for wallet in [wallet for wallet in self._claims if wallet not in live]:
            if all(now - at > WITHIN_S for at, _ in self._claims[wallet].heard.values()):
                del self._claims[wallet]


def _hear(claims: _Claims, boot: str, url: str, now: float) -> None:
    claims.heard[boot] = (now, url)
    while len(claims.heard) > MOST_BOOTS:
        del claims.heard[min(claims.heard, key=lambda each: claims.heard[each][0])]


def _others(claims: _Claims, boot: str, now: float) -> bool:
    return any(other != boot and now - at <= QUIET_S for other, (at, _) in claims.heard.items())
