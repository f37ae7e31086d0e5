"""What was measured of routes (ADR-0021): decayed means per arm, the topology epoch per model, reputation per wallet.

Nothing here knows a policy. Every method that changes something takes ``now`` in monotonic seconds; a clock that steps
back changes nothing by itself: ages are never negative, so no mass can grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from meshnet.domain.decayed import DecayedSum, decay
from meshnet.domain.routing import ArmStatus, Outcome, TopologyChange, is_positive_number

MIN_PROVEN_MASS = 0.5
"""Below this decayed mass an arm leaves the exploit pool (ADR-0021): one sample lasts one half-life, inclusive."""
PRUNE_AFTER_S = 86_400.0
"""Arms without samples for 24 h are forgotten (ADR-0021)."""
MAX_ARMS = 10_000
"""Arms kept in all; above it the longest unheard go first. An arm is about 300 bytes: 3 MB."""
REPUTATION_PRIOR_MASS = 2.0
"""Successes every node and arm is credited with at first, so that one failure reads 0.67 and not 0. They do not
decay: without news reputation returns to 1. Raising it forgives more."""


class TopologyEpochs:
    """Counter per model that rises with every TopologyChange: a node joined, left or changed shard. Who is a member,
    and so what is a change, only the keeper of leases knows."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    def epoch(self, model_key: str) -> int:
        return self._epochs.get(model_key, 0)

    def bump(self, model_key: str) -> int:
        self._epochs[model_key] = self.epoch(model_key) + 1
        return self._epochs[model_key]

    def raise_to(self, model_key: str, epoch: int) -> None:
        """For replaying a log: the epoch is at least this."""
        self._epochs[model_key] = max(self.epoch(model_key), epoch)


class Reputation:
    """Decayed success share per key (a wallet), in [0, 1]; 1 for keys never heard of, and again once failures decay."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._shares: dict[str, DecayedSum] = {}

    def observe(self, key: str, succeeded: bool, now: float) -> None:
        """One call's end. The client's own errors and cancels are none of the node's: do not pass them."""
        self._shares.setdefault(key, DecayedSum()).add(float(succeeded), 1.0, now, self._half_life_s)

    def value(self, key: str, now: float) -> float:
        share = self._shares.get(key)
        return 1.0 if share is None else _success_share(share.mass(now, self._half_life_s), share.ratio)

    def forget(self, now: float) -> None:
        """Drops keys unheard for PRUNE_AFTER_S."""
        self._shares = {key: s for key, s in self._shares.items() if now - (s.stamp or 0.0) <= PRUNE_AFTER_S}


def _success_share(tries: float, ratio: float | None) -> float:
    """``(successes + prior) / (tries + prior)``, both decayed; ``ratio`` of successes, None where nothing was tried."""
    successes = tries * (ratio if ratio is not None else 1.0)
    return (successes + REPUTATION_PRIOR_MASS) / (tries + REPUTATION_PRIOR_MASS)


class ArmStats(NamedTuple):
    """One arm as it stands at a moment. tps None: never measured. A tuple, because every choice makes one for every
    candidate."""

    tps: float | None = None
    mass: float = 0.0
    samples: int = 0
    status: ArmStatus = "unsampled"
    age_s: float | None = None
    ttft_s_per_prompt_token: float | None = None
    decode_s_per_token: float | None = None
    success_share: float = 1.0
    failures: int = 0
    spread_tps: float | None = None
    """Standard deviation of the decayed samples; None below two of them."""
    tries_mass: float = 0.0
    """Decayed number of measured and failed tries: what "least measured" counts, so that failing is not unmeasured."""


UNSAMPLED = ArmStats()


@dataclass(slots=True)
class _Arm:
    value: float = 0.0
    variance: float = 0.0
    """Of the samples around ``value``, each weighing what is left of it."""
    mass: float = 0.0
    stamp: float = 0.0
    """Of the last speed sample."""
    touched: float = 0.0
    epoch: int = 0
    samples: int = 0
    failures: int = 0
    ttft: DecayedSum = field(default_factory=DecayedSum)
    decode: DecayedSum = field(default_factory=DecayedSum)
    success: DecayedSum = field(default_factory=DecayedSum)


class RouteStatsStore:
    """Per (model, signature) a decayed mean of end-to-end tokens/s with its sample mass.

    ``value' = (value x m + sample) / (m + 1)``, ``mass' = m + 1`` with ``m = mass x 0.5 ** (age / half_life)``; the
    variance about it by the same weights (West 1979): ``m / (m + 1) x (variance + (sample - value)^2 / (m + 1))``.
    """

    def __init__(self, half_life_s: float = 600.0, min_sample_tokens: int = 8, epochs: TopologyEpochs | None = None):
        self._half_life_s = half_life_s
        self._min_sample_tokens = min_sample_tokens
        self.epochs = epochs or TopologyEpochs()
        self._arms: dict[tuple[str, str], _Arm] = {}
        self.dropped = 0
        """Samples refused because a number in them was none."""
        self.too_short = 0
        """Samples refused for having under min_sample_tokens."""

    def __len__(self) -> int:
        return len(self._arms)

    def on_topology(self, change: TopologyChange) -> None:
        self.epochs.bump(change.model_key)

    def observe(self, outcome: Outcome) -> bool:
        """Learn from one attempt's end. True if it became a speed sample; cancelled and re-routed ones teach nothing,
        failed ones lower the success share."""
        match outcome.status:
            case "ok":
                return self._observe_success(outcome)
            case "failed" if math.isfinite(outcome.finished_at):
                arm = self._arm(outcome.model_key, outcome.signature, outcome.finished_at)
                arm.failures += 1
                arm.success.add(0.0, 1.0, outcome.finished_at, self._half_life_s)
        return False

    def record(self, model_key: str, signature: str, tokens: int, seconds: float, now: float, epoch: int) -> bool:
        """One speed sample; refused (False) if shorter than min_sample_tokens or not made of positive finite numbers.
        ``epoch`` is the model's when the route was chosen: a late sample of an older epoch proves nothing anew."""
        is_speed = is_positive_number(tokens) and is_positive_number(seconds) and is_positive_number(tokens / seconds)
        if not (is_speed and math.isfinite(now)):
            self.dropped += 1
            return False
        if tokens < self._min_sample_tokens:
            self.too_short += 1
            return False
        self._blend(self._arm(model_key, signature, now), tokens / seconds, 1.0, now, epoch)
        return True

    def merge(
        self, model_key: str, signature: str, value: float, mass: float, timestamp: float, epoch: int = 0
    ) -> bool:
        """Add another store's (value, mass, timestamp) of an arm, decayed to the later stamp. False: no numbers."""
        if not (is_positive_number(value) and is_positive_number(mass) and math.isfinite(timestamp)):
            self.dropped += 1
            return False
        arm = self._arm(model_key, signature, timestamp)
        mass *= decay(arm.stamp - timestamp, self._half_life_s) if arm.samples else 1.0
        self._blend(arm, value, mass, timestamp, epoch)
        return True

    def arm(self, model_key: str, signature: str, now: float) -> ArmStats:
        """The arm at ``now``; changes nothing."""
        arm = self._arms.get((model_key, signature))
        if arm is None:
            return UNSAMPLED
        mass = arm.mass * decay(now - arm.stamp, self._half_life_s)
        tries, success = arm.success.mass(now, self._half_life_s), arm.success.ratio
        return ArmStats(
            arm.value if arm.samples else None,
            mass,
            arm.samples,
            self._status(model_key, arm, mass),
            max(now - arm.stamp, 0.0) if arm.samples else None,
            arm.ttft.ratio,
            arm.decode.ratio,
            _success_share(tries, success),
            arm.failures,
            _spread(arm),
            mass + tries * (1.0 - (success or 0.0)),
        )

    def known(self, model_key: str, now: float) -> list[tuple[str, ArmStats]]:
        """Every arm of the model by signature, as it stands at ``now``."""
        return [(signature, self.arm(key, signature, now)) for key, signature in self._arms if key == model_key]

    def fades_in_s(self, mass: float) -> float:
        """Until a mass falls below MIN_PROVEN_MASS if nothing is measured; 0 when it has."""
        return self._half_life_s * math.log2(mass / MIN_PROVEN_MASS) if mass > MIN_PROVEN_MASS else 0.0

    def triple(self, model_key: str, signature: str) -> tuple[float, float, float] | None:
        """(value, mass, timestamp) as ``merge`` takes it; mass as of the timestamp."""
        arm = self._arms.get((model_key, signature))
        return (arm.value, arm.mass, arm.stamp) if arm is not None and arm.samples else None

    def prune(self, now: float) -> int:
        """Forget arms untouched for PRUNE_AFTER_S. Returns how many."""
        old = [key for key, arm in self._arms.items() if now - arm.touched > PRUNE_AFTER_S]
        for key in old:
            del self._arms[key]
        return len(old)

    def _observe_success(self, outcome: Outcome) -> bool:
        tokens, now = outcome.completion_tokens, outcome.finished_at
        if is_positive_number(tokens) and math.isfinite(now):
            self._arm(outcome.model_key, outcome.signature, now).success.add(1.0, 1.0, now, self._half_life_s)
        if not self.record(outcome.model_key, outcome.signature, tokens, outcome.duration_s, now, outcome.epoch):
            return False
        arm = self._arm(outcome.model_key, outcome.signature, now)
        if is_positive_number(outcome.ttft_s) and is_positive_number(outcome.prompt_tokens):
            arm.ttft.add(outcome.ttft_s or 0.0, outcome.prompt_tokens, now, self._half_life_s)
        if is_positive_number(outcome.decode_s) and tokens > 1:
            arm.decode.add(outcome.decode_s or 0.0, tokens - 1, now, self._half_life_s)
        return True

    def _status(self, model_key: str, arm: _Arm, mass: float) -> ArmStatus:
        if not arm.samples:
            return "unsampled"
        if arm.epoch < self.epochs.epoch(model_key):
            return "stale"
        return "proven" if mass >= MIN_PROVEN_MASS else "decayed"

    def _blend(self, arm: _Arm, value: float, mass: float, now: float, epoch: int) -> None:
        kept = arm.mass * decay(now - arm.stamp, self._half_life_s) if arm.samples else 0.0
        whole, away = kept + mass, value - arm.value
        arm.variance = kept / whole * (arm.variance + mass / whole * away * away)
        arm.value = (arm.value * kept + value * mass) / whole
        arm.mass = whole
        arm.stamp = max(arm.stamp, now) if arm.samples else now
        arm.epoch = max(arm.epoch, epoch)
        arm.samples += 1

    def _arm(self, model_key: str, signature: str, now: float) -> _Arm:
        key = (model_key, signature)
        arm = self._arms.get(key)
        if arm is None:
            if len(self._arms) >= MAX_ARMS:
                self._forget_oldest()
            arm = self._arms[key] = _Arm(touched=now)
        arm.touched = max(arm.touched, now)
        return arm

    def _forget_oldest(self) -> None:
        """Make room for a tenth at once, so that a flood of new arms does not sort all of them each time."""
        oldest = sorted(self._arms, key=lambda key: self._arms[key].touched)
        for key in oldest[: max(MAX_ARMS // 10, 1)]:
            del self._arms[key]


def _spread(arm: _Arm) -> float | None:
    return math.sqrt(arm.variance) if arm.samples > 1 and math.isfinite(arm.variance) else None
