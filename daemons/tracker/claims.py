"""What nodes claim of their speed against what their calls show: observed / claimed, decayed, by wallet.

Only for people: routing learns from whole routes and never believed a claim for long (ADR-0021).
"""

from __future__ import annotations

from dataclasses import dataclass

from daemons.tracker.calls import Call, Try
from daemons.tracker.fleet import Fleet
from meshnet.domain.assignment import decode_tps

MIN_TOKENS = 4
"""A shorter attempt is mostly its first token's prefill."""
WEIGHT = 0.2
"""Of the newest attempt. Five attempts make half of what is shown."""


@dataclass(slots=True)
class _Seen:
    ratio: float


class Claims:
    """One owner."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen: dict[str, _Seen] = {}

    def ratio(self, wallet: str) -> float | None:
        """About 1 for an honest node that is not disturbed; a third for one that claims three times what it does."""
        seen = self._seen.get(wallet)
        return None if seen is None else round(seen.ratio, 3)

    def observe(self, call: Call) -> None:
        for attempt in call.tries:
            self._observe(attempt)

    def forget(self) -> None:
        """Drop wallets that are gone."""
        here = {node.wallet for node in self._fleet.nodes()}
        self._seen = {wallet: seen for wallet, seen in self._seen.items() if wallet in here}

    def _observe(self, attempt: Try) -> None:
        # Beside other calls a step computes several sessions' rows and is slower for each of them.
        if attempt.timed_tokens < MIN_TOKENS or any(attempt.plan.loads):
            return
        for hop, timing in zip(attempt.plan.decision.route.hops, attempt.hop_timings, strict=False):
            lease = self._fleet.get(hop.node_id)
            if lease is None or timing.compute_s <= 0:
                continue
            share = hop.work_layers / lease.node.work_layers
            observed = timing.steps / timing.compute_s * share
            ratio = observed / decode_tps(lease.node)
            seen = self._seen.setdefault(lease.node.wallet, _Seen(ratio))
            seen.ratio += WEIGHT * (ratio - seen.ratio)
