"""What a shard costs in memory, and how many layers a machine can hold (ADR-0011).

memory(shard) = weights in the node's dtype
              + KV for the promised context x sessions, of the shard's layers
              + workspace of the process
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import ModelKey, Revision
from meshnet.domain.shards import MAX_LAYERS, Shard

DEFAULT_WORKSPACE_BYTES = 640 * 2**20
"""The interpreter, torch and the activations of one packed step: up to 620 MB measured beside weights and KV of a small
model. Too low and the kernel ends the node, not we."""
DEFAULT_SHARE = 0.8
"""Part of the available memory a node takes unasked: the machine belongs to its owner."""
DEFAULT_CONTEXT_TOKENS = 4096
DEFAULT_SESSIONS = 4
"""KV promised unasked: four chats of some pages each. Raising either costs layers."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of ``512MiB`` or ``2GB``. Raises InvalidRequest."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is no size; write it as 512MiB or 2GB.")
    unit = match[2].lower().rstrip("b")
    factor = 1024 if unit.endswith("i") else 1000
    return int(float(match[1]) * factor ** _UNITS[unit.rstrip("i")])


@dataclass(frozen=True, slots=True)
class Promise:
    """KV that a node keeps ready: ``sessions`` at once, each of up to ``context_tokens``."""

    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    sessions: int = DEFAULT_SESSIONS

    def __post_init__(self) -> None:
        if self.context_tokens < 1 or self.sessions < 1:
            raise InvalidRequest(
                f"{self.sessions} sessions of {self.context_tokens} tokens: promise at least one of each",
                param="sessions",
            )


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Bytes of a model in one dtype. Per-layer tuples have ``n_layers`` entries."""

    model_key: ModelKey
    revision: Revision
    dtype: str
    context_length: int
    layer_bytes: tuple[int, ...]
    kv_bytes_per_token: tuple[int, ...]
    """0 for layers without a KV cache."""
    embedding_bytes: int = 0
    """The head's: with layer 0."""
    final_bytes: int = 0
    """The tail's: norm and lm_head, without the embedding matrix where ``tied``."""
    tied: bool = False
    """The tail needs the embedding matrix too; a node that is head and tail holds it once."""
    state_bytes_per_session: tuple[int, ...] = ()
    """Fixed state of linear-attention layers, per session; empty for none."""
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES

    def __post_init__(self) -> None:
        lengths = {
            len(self.layer_bytes),
            len(self.kv_bytes_per_token),
            len(self.state_bytes_per_session or self.layer_bytes),
        }
        if len(lengths) != 1 or not 1 <= len(self.layer_bytes) <= MAX_LAYERS:
            raise InvalidRequest(f"{self.model_key}: costs of {sorted(lengths)} layers; one entry a layer is needed")

    @property
    def n_layers(self) -> int:
        return len(self.layer_bytes)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Where the bytes of a shard go."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


def usable_bytes(asked_bytes: int | None, available_bytes: int) -> int:
    """The budget: what the owner allows, but never more than is truly available; unasked, a share of that."""
    if asked_bytes is None:
        return int(max(available_bytes, 0) * DEFAULT_SHARE)
    return max(min(asked_bytes, available_bytes), 0)


def memory_need(cost: ModelCost, shard: Shard, promise: Promise) -> MemoryNeed:
    """What a node with this shard holds when every promised session is full."""
    layers = range(shard.start, shard.end + 1)
    weights = sum(cost.layer_bytes[layer] for layer in layers) + _ends_bytes(cost, shard)
    kv = sum(_kv_bytes(cost, layer, promise) for layer in layers)
    return MemoryNeed(weights, kv, cost.workspace_bytes)


def widest_shards(cost: ModelCost, budget_bytes: int, promise: Promise) -> list[Shard]:
    """For every start layer, the longest that fits the budget; starts where not even one layer fits are left out."""
    needs = [cost.layer_bytes[layer] + _kv_bytes(cost, layer, promise) for layer in range(cost.n_layers)]
    shards = [_widest_from(cost, start, budget_bytes - cost.workspace_bytes, needs) for start in range(cost.n_layers)]
    return [shard for shard in shards if shard is not None]


def smallest_need(cost: ModelCost, promise: Promise) -> MemoryNeed:
    """The least with which a machine can hold any layer of the model."""
    needs = (memory_need(cost, Shard(layer, layer), promise) for layer in range(cost.n_layers))
    return min(needs, key=lambda need: need.total_bytes)


def ends_in_layers(cost: ModelCost, shard: Shard, promise: Promise) -> tuple[int, int]:
    """How many layers' memory the embedding (if the shard has layer 0) and the output head (if it has the last) take,
    rounded up. (0, 0) in the middle."""
    mean = sum(cost.layer_bytes[i] + _kv_bytes(cost, i, promise) for i in range(cost.n_layers)) / cost.n_layers
    last = cost.n_layers - 1
    head = _ends_bytes(cost, Shard(0, 0)) if shard.start == 0 and last > 0 else 0
    tail = _ends_bytes(cost, Shard(last, last)) if shard.end == last > 0 else 0
    return _ceil_div(head, mean), _ceil_div(tail, mean)


def format_bytes(size_bytes: int) -> str:
    """``1.75 GB`` or ``45 MB``: decimal units, as memory and disks are sold."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def _widest_from(cost: ModelCost, start: int, budget_bytes: int, needs: Sequence[int]) -> Shard | None:
    used, widest = 0, None
    for end in range(start, cost.n_layers):
        used += needs[end]
        shard = Shard(start, end)
        if used + _ends_bytes(cost, shard) > budget_bytes:
            break
        widest = shard
    return widest


def _ends_bytes(cost: ModelCost, shard: Shard) -> int:
    is_head, is_tail = shard.start == 0, shard.end == cost.n_layers - 1
    embedding = cost.embedding_bytes if is_head or (is_tail and cost.tied) else 0
    return embedding + (cost.final_bytes if is_tail else 0)


def _kv_bytes(cost: ModelCost, layer: int, promise: Promise) -> int:
    tokens = min(promise.context_tokens, cost.context_length) if cost.context_length else promise.context_tokens
    state = cost.state_bytes_per_session[layer] if cost.state_bytes_per_session else 0
    return promise.sessions * (tokens * cost.kv_bytes_per_token[layer] + state)


def _ceil_div(part: float, whole: float) -> int:
    return int(-(-part // whole)) if whole > 0 else 0
