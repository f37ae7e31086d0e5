"""Which model and which layers a joining node gets (ADR-0011, ADR-0013 section 3, ADR-0031).

First the model, by the record's score; then the window of layers, the one whose layers are weakest; then the sentence
why. Pure: demand, nodes, reservations and costs come in as values. Moving a node that is up is in ``rebalance``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshnet.domain.budget import (
    MemoryNeed,
    ModelCost,
    Promise,
    ends_in_layers,
    format_bytes,
    memory_need,
    smallest_need,
    widest_shards,
)
from meshnet.domain.coverage import coverage_deficit, shard_depths
from meshnet.domain.errors import InvalidRequest, NotFound
from meshnet.domain.ids import ModelKey, Revision
from meshnet.domain.nodes import DEFAULT_BENCHMARK_TPS, Node
from meshnet.domain.reservations import Reservation
from meshnet.domain.shards import Shard

DEMAND_FLOOR = 1.0
"""ADR-0013: models nobody asks for still compete by coverage."""
DEFICIT_FLOOR = 0.01
"""ADR-0013: fully covered models still attract nodes if demand is high (100 rpm weigh as much as no cover at all)."""
MAX_DEMAND_RPM = 1e9
"""What an infinite demand counts as, so that the score stays a number."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A machine that wants work. ``budget_bytes`` is memory truly usable (``budget.usable_bytes``)."""

    holder: str
    """Wallet: its own nodes and reservations do not count, it is about to replace them."""
    budget_bytes: int
    promise: Promise = field(default_factory=Promise)
    throughput: float = DEFAULT_BENCHMARK_TPS
    """Tokens/s it is believed to decode."""
    model_key: ModelKey | None = None
    """None: whatever helps most."""
    shard: Shard | None = None
    """Layers that the machine's owner names; they are given whatever the budget."""


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """A model that may be assigned: its cost in the node's dtype, what is asked, who holds or will hold it."""

    cost: ModelCost
    demand_rpm: float = 0.0
    """``get_combined_stats()[model]["rpm_last_hour"]``."""
    nodes: tuple[Node, ...] = ()
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    model_key: ModelKey
    revision: Revision
    dtype: str
    shard: Shard
    score: float
    demand_rpm: float
    coverage_deficit: float
    """Before this assignment, reserved and loading layers counting as covered."""
    need: MemoryNeed
    why: str
    price_per_token: float = 0.0
    """Stable wire field; nothing is charged."""


def assignment_score(demand_rpm: float, coverage_deficit: float) -> float:
    """``(demand_rpm + 1.0) * (coverage_deficit + 0.01)`` (ADR-0013 section 3), monotone in both.

    Not-a-number counts as 0 and each is kept to its range: a broken figure neither wins nor poisons the comparison.
    """
    demand_rpm = _clamp(demand_rpm, 0.0, MAX_DEMAND_RPM)
    coverage_deficit = _clamp(coverage_deficit, 0.0, 1.0)
    return (demand_rpm + DEMAND_FLOOR) * (coverage_deficit + DEFICIT_FLOOR)


def assign(request: JoinRequest, needs: Sequence[ModelNeed]) -> Assignment:
    """The work that helps most of what the machine can hold.

    Raises NotFound (no such model, or none at all) and InvalidRequest(code="budget_too_small", saying what is short).
    """
    wanted = [need for need in needs if request.model_key in (None, need.cost.model_key)]
    if not wanted:
        what = f"The model {request.model_key}" if request.model_key else "Any model"
        raise NotFound(f"{what} is unknown to this tracker. See: meshnet models", param="model")
    ranked = sorted(wanted, key=lambda need: _rank(need, request.holder))
    for need in ranked:
        shards = _possible(request, need.cost)
        if shards:
            return _assignment(request, need, shards, len(wanted))
    raise _too_small(request, wanted)


def _possible(request: JoinRequest, cost: ModelCost) -> Sequence[Shard]:
    if request.shard is None:
        return widest_shards(cost, request.budget_bytes, request.promise)
    if request.shard.end >= cost.n_layers:
        last = cost.n_layers - 1
        raise InvalidRequest(f"{cost.model_key} has layers 0-{last}, not {request.shard}.", param="shard_end")
    return [request.shard]


def promised_shards(need: ModelNeed, holder: str = "") -> list[tuple[Shard, float]]:
    """(shard, tokens/s) of all that serve, load or have reserved these exact weights and dtype, but the holder's."""
    exact = (need.cost.model_key, need.cost.revision, need.cost.dtype)
    nodes = [
        (node.shard, decode_tps(node))
        for node in need.nodes
        if (node.model_key, node.revision, node.dtype) == exact and node.state != "draining" and node.wallet != holder
    ]
    up = {node.wallet for node in need.nodes if node.state != "draining"}
    return nodes + [
        (held.shard, _positive(held.throughput))
        for held in need.reservations
        # A node that is up and still reserved would count twice.
        if (held.model_key, held.revision, held.dtype) == exact and held.holder != holder and held.holder not in up
    ]


def layer_capacity(shards: Iterable[tuple[Shard, float]], n_layers: int) -> list[float]:
    """Tokens/s that each layer's holders decode together. 0 is a gap."""
    capacity = [0.0] * n_layers
    # Summed in one order, so that equal sets give equal floats on every tracker.
    for shard, throughput in sorted(shards):
        for layer in range(shard.start, min(shard.end, n_layers - 1) + 1):
            capacity[layer] += throughput
    return capacity


def choose_window(capacity: Sequence[float], shards: Iterable[Shard], cost: ModelCost, promise: Promise) -> Shard:
    """The shard whose sorted layer capacities are lexicographically smallest: it raises the weakest layers, and where
    these are equal the most of them. Among equals the first, so that windows pack without holes between them.

    The embedding and the output head count as the layers whose memory they take, else a head would always look
    shorter than a window beside it, and layer 0 would be left to whoever comes last.
    """

    def weakness(shard: Shard) -> tuple[list[float], int]:
        head, tail = ends_in_layers(cost, shard, promise)
        held = [*capacity[shard.start : shard.end + 1], *[capacity[0]] * head, *[capacity[-1]] * tail]
        # inf ends the list: of two windows of which one continues the other, the longer is smaller.
        return [*sorted(held), math.inf], shard.start

    return min(shards, key=weakness)


def decode_tps(node: Node) -> float:
    """The node's benchmark; what is no positive finite number counts as ADR-0013's default."""
    return _positive(node.benchmark_tokens_per_sec)


def _rank(need: ModelNeed, holder: str) -> tuple[float, int, str]:
    """Highest score first, then the model with the thinnest layer, then by name."""
    depths = _promised_depths(need, holder)
    return -assignment_score(need.demand_rpm, coverage_deficit(depths)), min(depths), need.cost.model_key


def _promised_depths(need: ModelNeed, holder: str) -> list[int]:
    return shard_depths((shard for shard, _ in promised_shards(need, holder)), need.cost.n_layers)


def _assignment(request: JoinRequest, need: ModelNeed, shards: Sequence[Shard], n_models: int) -> Assignment:
    cost = need.cost
    capacity = layer_capacity(promised_shards(need, request.holder), cost.n_layers)
    shard = choose_window(capacity, shards, cost, request.promise)
    deficit = coverage_deficit(_promised_depths(need, request.holder))
    memory = memory_need(cost, shard, request.promise)
    return Assignment(
        cost.model_key,
        cost.revision,
        cost.dtype,
        shard,
        assignment_score(need.demand_rpm, deficit),
        need.demand_rpm,
        deficit,
        memory,
        f"{_why_model(need, deficit, n_models)} {_why_window(capacity, shard)} {_why_memory(request, memory)}"
        if request.shard is None
        else f"Layers {shard} of {cost.model_key} as the machine's owner says.",
    )


def _why_model(need: ModelNeed, deficit: float, n_models: int) -> str:
    chosen = f"highest of {n_models} models" if n_models > 1 else "the only model in question"
    return (
        f"{need.cost.model_key}: {need.demand_rpm:.1f} requests/min and {deficit:.0%} of its layers promised by nobody "
        f"give score {assignment_score(need.demand_rpm, deficit):.3f}, {chosen}."
    )


def _why_window(capacity: Sequence[float], shard: Shard) -> str:
    held = capacity[shard.start : shard.end + 1]
    gaps = sum(tps == 0 for tps in held)
    if gaps:
        return f"Layers {shard} close {gaps} of {sum(tps == 0 for tps in capacity)} open layers."
    return f"No layer is open; layers {shard} are the weakest ({min(held):.1f} tokens/s)."


def _why_memory(request: JoinRequest, need: MemoryNeed) -> str:
    return (
        f"They take {format_bytes(need.total_bytes)} of {format_bytes(request.budget_bytes)}: weights "
        f"{format_bytes(need.weights_bytes)}, KV for {request.promise.sessions} x {request.promise.context_tokens} "
        f"tokens {format_bytes(need.kv_bytes)}, workspace {format_bytes(need.workspace_bytes)}."
    )


def _too_small(request: JoinRequest, wanted: Sequence[ModelNeed]) -> InvalidRequest:
    least, cost = min(
        ((smallest_need(need.cost, request.promise), need.cost) for need in wanted),
        key=lambda pair: (pair[0].total_bytes, pair[1].model_key),
    )
    short = least.total_bytes - request.budget_bytes
    return InvalidRequest(
        f"{format_bytes(request.budget_bytes)} hold no layer: the smallest of {cost.model_key} needs "
        f"{format_bytes(least.total_bytes)} (weights {format_bytes(least.weights_bytes)}, KV "
        f"{format_bytes(least.kv_bytes)}, workspace {format_bytes(least.workspace_bytes)}), {format_bytes(short)} "
        "more. Give more --memory or promise fewer sessions or less context.",
        code="budget_too_small",
        param="memory_bytes",
    )


def _positive(throughput: float) -> float:
    return throughput if math.isfinite(throughput) and throughput > 0 else DEFAULT_BENCHMARK_TPS


def _clamp(value: float, low: float, high: float) -> float:
    return low if math.isnan(value) else min(max(value, low), high)
