"""Structs of demand, gossip, assignment and usage."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from meshnet.wire.messages import Bytes, DtypeText, HardwareMessage, Layer, ModelKeyText, Name, WalletText


class ModelStats(Struct, frozen=True, kw_only=True):
    """Requests per minute of one model: this tracker's own, and with all peers' slices."""

    model_key: str
    rpm_last_hour: float
    rpm_last_day: float
    rpm_last_month: float
    combined_rpm_last_hour: float
    combined_rpm_last_day: float
    combined_rpm_last_month: float
    rpm_since_start: float = 0.0
    """For display: requests since this tracker started, by the minutes since."""
    minutes: tuple[int, ...] = ()
    """Own counts of the last 60 minutes, oldest first."""


class PeerStats(Struct, frozen=True, kw_only=True):
    url: str
    tracker_id: str = ""
    up: bool = False
    age_s: float | None = None
    """Since the last successful exchange."""
    error: str = ""


class StatsResponse(Struct, frozen=True, kw_only=True):
    tracker_id: str
    generation: int
    models: tuple[ModelStats, ...]
    peers: tuple[PeerStats, ...] = ()
    database: str = "ok"
    """``ok``, or what is wrong with it, in words."""
    unsaved_s: float = 0.0


class GossipMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both the request and the answer of ``POST /v1/gossip``."""

    sender: Annotated[str, Meta(min_length=8, max_length=64)]
    sent_at: float
    slices: Annotated[tuple[str, ...], Meta(max_length=256)]
    """Each as its origin signed it; ``wire.slices`` reads them."""


class AssignmentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine offers itself: ``POST /v1/assignments``."""

    wallet: WalletText
    """Holds the reservation until this wallet registers; asking again replaces it."""
    name: Name
    memory_budget_bytes: Bytes
    """For weights, KV and workspace together."""
    dtype: DtypeText = "float32"
    model_key: ModelKeyText | None = None
    shard_start: Layer | None = None
    """With ``shard_end`` and ``model_key``: the owner names the layers, and asks only where to fetch them from."""
    shard_end: Layer | None = None
    sessions: Annotated[int, Meta(ge=1, le=1024)] = 4
    context_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    benchmark_tokens_per_sec: float = 1.0
    hardware: HardwareMessage = HardwareMessage()


class AssignmentResponse(Struct, frozen=True, kw_only=True):
    model_key: str
    revision: str
    n_layers: int
    shard_start: Layer
    shard_end: Layer
    price_per_token: float
    why: str
    reserved_for_s: float
    weights_bytes: int = 0
    kv_bytes: int = 0
    score: float = 0.0
    """(demand_rpm + 1.0) x (coverage_deficit + 0.01), before this assignment."""
    demand_rpm: float = 0.0
    coverage_deficit: float = 0.0
    sources: tuple[str, ...] = ()
    """Base URLs that serve this model's files."""
    tickets: dict[str, str] = {}
    """By wallet: leave to link to those sources that are behind a relay."""


class UsageRow(Struct, frozen=True, kw_only=True):
    """One hop's work in one attempt of a call: ``work_units`` = layers x tokens. Unique by (call_id, hop, attempt)."""

    call_id: str
    attempt: int
    hop: int
    """0 is the head."""
    model_key: str
    node_id: str
    wallet: str
    start_layer: int
    end_layer: int
    tokens: int
    """New to the call: its prompt once, and what this attempt produced."""
    replayed_tokens: int
    """Prefilled again after a failure: work, but none of the call's."""
    outcome: str
    work_units: int
    price_micro_units: int = 0
    at: float = 0.0


class UsageTotal(Struct, frozen=True, kw_only=True):
    wallet: str
    model_key: str
    calls: int
    tokens: int
    replayed_tokens: int
    work_units: int
    price_micro_units: int = 0


class UsageResponse(Struct, frozen=True, kw_only=True):
    """``totals`` of everything kept, most work first; ``rows`` of the last calls, newest first."""

    totals: tuple[UsageTotal, ...]
    rows: tuple[UsageRow, ...] = ()
