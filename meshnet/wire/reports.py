"""What a tracker tells of its work: the call wall, live events, learned routes. Read-only structs of its HTTP interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from meshnet.domain.routing import ArmStatus, Mode
from meshnet.wire.messages import ModelKeyText, NodeIdText

CallOutcome = Literal["running", "ok", "failed", "cancelled"]
EventKind = Literal[
    "call_accepted",
    "route_selected",
    "first_token",
    "call_rerouted",
    "call_finished",
    "call_failed",
    "call_cancelled",
    "node_joined",
    "node_left",
    "node_changed",
]


class AttemptMessage(Struct, frozen=True, kw_only=True):
    """One try of a call on one route."""

    attempt: int
    signature: str
    mode: Mode
    why: str
    policy: str = ""
    propensity: float = 1.0
    """Probability with which this route was chosen."""
    outcome: Literal["running", "ok", "failed", "refused", "cancelled"] = "running"
    code: str | None = None
    """Why it ended, where it did not end well."""
    culprit: str | None = None
    tokens: int = 0
    """Produced in this attempt."""
    started_s: float = 0.0
    """Since the call arrived."""
    ttft_s: float | None = None
    duration_s: float = 0.0
    hop_us: tuple[tuple[int, int], ...] = ()
    """Per hop: µs queued and µs computing, summed over the tokens of this attempt."""


class CallMessage(Struct, frozen=True, kw_only=True):
    """One call of the wall. Speeds and times are the client's: from arrival, over all attempts."""

    call_id: str
    model_key: str
    created: float
    """Unix seconds."""
    stream: bool
    outcome: CallOutcome
    finish_reason: str | None = None
    error_code: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    duration_s: float = 0.0
    tokens_per_sec: float | None = None
    """Completion tokens over the time from the last dispatch to the last token; None below one token."""
    attempts: tuple[AttemptMessage, ...] = ()

    @property
    def last(self) -> AttemptMessage | None:
        return self.attempts[-1] if self.attempts else None


class CallsResponse(Struct, frozen=True):
    """Newest first. ``next`` is the ``before`` of the following page, None at the end."""

    calls: tuple[CallMessage, ...]
    next: str | None = None


class EventMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One live event. ``id`` grows; a client that comes back with its last one misses none that is still kept."""

    id: str
    kind: EventKind
    at: float
    """Unix seconds."""
    model_key: str | None = None
    call_id: str | None = None
    node_id: str | None = None
    mode: Mode | None = None
    signature: str | None = None
    why: str | None = None
    attempt: int | None = None
    detail: dict[str, Any] = {}
    """Figures of this kind: tokens, ttft_s, code, reason."""


class RoutingHop(Struct, frozen=True):
    node_id: str
    start_layer: int
    end_layer: int


class RoutingRow(Struct, frozen=True, kw_only=True):
    """One candidate route: what is learned of it and the share of traffic it will get."""

    signature: str
    hops: tuple[RoutingHop, ...]
    status: ArmStatus
    prior_tps: float
    tps: float | None
    coefficient: float | None
    expected_share: float
    predicted_tps: float
    samples: int
    mass: float
    age_s: float | None
    ttft_s_per_prompt_token: float | None
    decode_s_per_token: float | None
    success_share: float
    failures: int
    loads: tuple[int, ...] = ()


class RoutingModel(Struct, frozen=True, kw_only=True):
    model_key: str
    topology_epoch: int
    policy: str
    explore_share: float
    weight_alpha: float
    stats_half_life_s: float
    min_sample_tokens: int
    candidates: tuple[RoutingRow, ...]


class RoutingResponse(Struct, frozen=True):
    """``GET /v1/routing``: reading changes nothing."""

    models: tuple[RoutingModel, ...]


class ExplainRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/routing/explain``: what would be decided for a request of this model."""

    model: ModelKeyText
    route: Annotated[tuple[NodeIdText, ...], Meta(max_length=64)] | None = None
    route_policy: Annotated[str, Meta(max_length=32)] | None = None


class LeftOut(Struct, frozen=True):
    node_id: str
    why: str


class ExplainResponse(Struct, frozen=True, kw_only=True):
    model_key: str
    mode: Mode
    signature: str
    why: str
    policy: str
    scores: dict[str, float]
    probabilities: dict[str, float]
    candidates: tuple[RoutingRow, ...]
    left_out: tuple[LeftOut, ...] = ()
