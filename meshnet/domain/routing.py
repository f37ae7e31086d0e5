"""The words of learned routing: configuration, what a choice answers, what a finished call teaches, a policy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import StartError
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.routes import Route

PolicyName = Literal["adr", "hop", "greedy", "eps", "thompson", "p2c", "random"]
POLICY_NAMES: tuple[PolicyName, ...] = ("adr", "hop", "greedy", "eps", "thompson", "p2c", "random")

Mode = Literal["scout", "exploit", "pinned", "greedy-fallback"]
ArmStatus = Literal["proven", "unsampled", "stale", "decayed"]
OutcomeStatus = Literal["ok", "failed", "cancelled", "rerouted"]
"""How a route's part of a call ended. rerouted: it began the call but did not serve the whole of it (or served only
the rest); cancelled also covers the client's own errors. Only ok is a speed sample, only failed counts against."""

MAX_ALPHA = 1_000.0
"""Beyond this the exploit split is winner-takes-all to the last bit."""
MAX_HALF_LIFE_S = 7 * 86_400.0
"""A week: unmeasured arms are forgotten after a day, so a longer half-life decays nothing."""
MAX_MIN_SAMPLE_TOKENS = 100_000
"""No answer is longer, so nothing would ever be learned."""


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Knobs of ADR-0021, with its defaults. Raises StartError naming the field and its range."""

    explore_share: float = 0.3
    """Share of requests that scout while any candidate is unproven. Lower to 0.05-0.1 once real traffic comes."""
    weight_alpha: float = 1.0
    """Exploit traffic goes as tps^alpha. Raise once real traffic comes: 0 is uniform, 8 nearly winner-takes-all."""
    stats_half_life_s: float = 600.0
    """Seconds until a sample counts half. Lower follows changes faster and re-scouts more."""
    min_sample_tokens: int = 8
    """Shorter completions teach nothing: their time is mostly the first token's."""
    policy: PolicyName = "adr"

    def __post_init__(self) -> None:
        _check("explore_share", self.explore_share, 0.0, 1.0)
        _check("weight_alpha", self.weight_alpha, 0.0, MAX_ALPHA)
        _check("stats_half_life_s", self.stats_half_life_s, 1.0, MAX_HALF_LIFE_S)
        _check("min_sample_tokens", self.min_sample_tokens, 1, MAX_MIN_SAMPLE_TOKENS)
        if isinstance(self.min_sample_tokens, float):
            raise StartError(f"min_sample_tokens is {self.min_sample_tokens}; it must be a whole number.")
        if self.policy not in POLICY_NAMES:
            raise StartError(f"route policy {self.policy!r} is unknown; choose one of {', '.join(POLICY_NAMES)}.")


def _check(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise StartError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.", param=name)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which route a request takes and why. ``scores`` (the policy's tokens/s) and ``probabilities`` (which sum to 1)
    are by signature."""

    route: Route
    signature: str
    mode: Mode
    why: str
    policy: str
    scores: Mapping[str, float] = field(default_factory=dict)
    probabilities: Mapping[str, float] = field(default_factory=dict)

    @property
    def propensity(self) -> float:
        """Probability with which this route was chosen: what replay divides by."""
        return self.probabilities.get(self.signature, 1.0)


@dataclass(frozen=True, slots=True)
class HopTiming:
    """What frames say one hop spent on a call's decode steps, in seconds summed over ``steps``."""

    node_id: NodeId
    steps: int
    compute_s: float
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tracker measured of one attempt of a call. Stamps are monotonic seconds of the tracker."""

    model_key: ModelKey
    route: Route
    signature: str
    epoch: int
    """The model's topology epoch when the route was chosen."""
    status: OutcomeStatus
    started_at: float
    """Dispatch to the head."""
    first_token_at: float | None
    finished_at: float
    """Last token, or the failure."""
    completion_tokens: int
    prompt_tokens: int = 0
    hop_timings: tuple[HopTiming, ...] = ()
    """Empty where frames carried none: speeds are then attributed from end to end."""
    loads: tuple[int, ...] = ()
    """Per hop the load when chosen (``Candidate.loads``): a busy node's sample is not its idle speed."""
    claimed_layer_s: tuple[float, ...] = ()
    """``Candidate.layer_s``: where a node's speed starts from when only end-to-end times are known."""
    failed_node: NodeId | None = None

    @property
    def duration_s(self) -> float:
        return self.finished_at - self.started_at

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.started_at

    @property
    def decode_s(self) -> float | None:
        """Seconds from the first token to the last: completion_tokens - 1 steps."""
        return None if self.first_token_at is None else self.finished_at - self.first_token_at


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """A node joined or left a model's mesh, or serves another shard. Heartbeats and ejections are none."""

    model_key: ModelKey
    node_id: NodeId
    kind: Literal["join", "leave", "shard"]


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One line of the routing table."""

    candidate: Candidate
    status: ArmStatus
    tps: float | None
    """Learned, end to end. None: never measured."""
    coefficient: float | None
    """tps / the best proven arm's tps."""
    expected_share: float
    """Of the next requests; sums to 1 over the table."""
    predicted_tps: float
    """What the policy counts with now."""
    samples: int
    mass: float
    """Decayed number of samples."""
    age_s: float | None
    """Since the last sample."""
    ttft_s_per_prompt_token: float | None
    decode_s_per_token: float | None
    success_share: float
    failures: int
    spread_tps: float | None = None
    """Standard deviation of the samples behind ``tps``; None below two of them."""


class Policy(Protocol):
    """How routes are chosen. ``choose`` and ``table`` change nothing; the same rng state gives the same answer."""

    name: PolicyName

    def choose(self, candidates: Sequence[Candidate], now: float, rng: Random) -> Decision:
        """Raises NoRoute when there is no candidate."""
        ...

    def observe(self, outcome: Outcome) -> None: ...

    def on_topology(self, change: TopologyChange) -> None: ...

    def table(self, candidates: Sequence[Candidate], now: float) -> list[ArmRow]: ...


def is_positive_number(value: object) -> bool:
    """Whether value can be a speed or a duration: a finite int or float above 0, no bool, no text."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max
