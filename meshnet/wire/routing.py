"""Structs of learned routing: the candidate table, explanations, calls and events."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

RouteMode = Literal["scout", "exploit", "pinned", "greedy-fallback"]
ArmStatus = Literal["proven", "unsampled", "stale", "decayed"]
Outcome = Literal["running", "ok", "failed", "cancelled"]


class RouteHop(Struct, frozen=True, kw_only=True):
    """One hop of a candidate or call. ``*_us`` are what frames measured for this hop, decayed; None before any."""

    node_id: str
    name: str = ""
    start_layer: int
    end_layer: int
    queued_us: float | None = None
    computing_us: float | None = None
    load: int = 0
    relayed: bool = False


class CandidateMessage(Struct, frozen=True, kw_only=True):
    """One row of ``GET /v1/routing``. Rates in tokens/s, ages in seconds; None where nothing was measured."""

    signature: str
    hops: tuple[RouteHop, ...]
    status: ArmStatus
    prior_tps: float
    learned_tps: float | None = None
    spread_tps: float | None = None
    """Standard deviation of the decayed samples."""
    coefficient: float | None = None
    expected_share: float = 0.0
    actual_share: float | None = None
    """Share of the last hour's routed calls of this model."""
    samples: int = 0
    weight: float = 0.0
    """Decayed sample mass."""
    age_s: float | None = None
    stale_in_s: float | None = None
    """Until the mass falls below 0.5 if nothing is measured."""
    predicted_tps: float | None = None
    """What the policy in use expects of it now."""
    reputation: float = 1.0
    ttft_s_per_prompt_token: float | None = None
    decode_s_per_token: float | None = None
    next_scout: bool = False
    current: bool = True
    """False for an arm that is remembered but no candidate now."""


class RoutingConfigMessage(Struct, frozen=True, kw_only=True):
    policy: str
    explore_share: float
    weight_alpha: float
    stats_half_life_s: float
    min_sample_tokens: int


class RoutingModel(Struct, frozen=True, kw_only=True):
    model_key: str
    topology_epoch: int
    candidates: tuple[CandidateMessage, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """(node_id or signature, why it is no candidate)."""
    dropped_samples: int = 0


class RoutingResponse(Struct, frozen=True, kw_only=True):
    config: RoutingConfigMessage
    models: tuple[RoutingModel, ...]


class ExplainRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    route: tuple[str, ...] = ()
    route_policy: str | None = None
    seed: int | None = None


class DecisionMessage(Struct, frozen=True, kw_only=True):
    """How a route was chosen: in calls, events and explanations."""

    mode: RouteMode
    signature: str
    why: str
    policy: str = ""
    probability: float | None = None
    scores: dict[str, float] = {}
    probabilities: dict[str, float] = {}


class ExplainResponse(Struct, frozen=True, kw_only=True):
    model_key: str
    topology_epoch: int
    decision: DecisionMessage | None
    candidates: tuple[CandidateMessage, ...]
    left_out: tuple[tuple[str, str], ...] = ()


class AttemptMessage(Struct, frozen=True, kw_only=True):
    """One try of a call on one route; all but the last ended in a re-route."""

    attempt: int
    decision: DecisionMessage
    hops: tuple[RouteHop, ...]
    started_s: float = 0.0
    """Seconds since the call was accepted."""
    ended_s: float | None = None
    code: str | None = None
    """Why it ended, where it failed: a code of wire/messages.Failed."""
    message: str = ""
    culprit: str | None = None


class CallMessage(Struct, frozen=True, kw_only=True):
    """One call on the call wall. Durations in seconds; ``accepted_at`` is Unix time, for display only."""

    seq: int
    call_id: str
    model_key: str
    accepted_at: float
    outcome: Outcome
    mode: RouteMode | None
    signature: str
    attempts: tuple[AttemptMessage, ...]
    stream: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    duration_s: float | None = None
    tps: float | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    reroutes: int = 0
    prompt: str | None = None
    """Only where the operator asked for prompts to be kept (off by default)."""


class CallsResponse(Struct, frozen=True, kw_only=True):
    calls: tuple[CallMessage, ...]
    next_before: int | None = None
    """Pass as ``before`` to read on; None at the end."""


class EventMessage(Struct, frozen=True, kw_only=True):
    """One event of ``GET /v1/events``; ``id`` rises by one and survives restarts."""

    id: int
    at: float
    """Unix seconds, for display only."""
    kind: str
    """call.accepted, call.routed, call.first_token, call.rerouted, call.finished, call.failed, call.cancelled,
    node.joined, node.left, node.changed, node.suspect, node.ejected, node.returned, tracker.started, ..."""
    problem: bool = False
    model_key: str = ""
    call_id: str = ""
    node_id: str = ""
    text: str = ""
    data: dict[str, Any] = {}
