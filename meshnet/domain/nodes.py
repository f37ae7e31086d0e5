"""What the tracker knows of a node, and what routing reads of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from meshnet.domain.ids import ModelKey, NodeId, Revision, Wallet
from meshnet.domain.shards import Shard

DEFAULT_BENCHMARK_TPS = 1.0
"""ADR-0013: a node that does not say how fast it is counts as the slowest."""

HEARTBEAT_INTERVAL_S = 5.0
"""How often a node says it lives. Raising it delays the discovery of silent deaths by 3 x as much."""
SUSPECT_AFTER_MISSED = 2
OUT_AFTER_MISSED = 3
"""Missed heartbeats until a node is not preferred, and until its lease ends (a leave)."""

NodeState = Literal["loading", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    kind: str
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A machine as its node sees it. Sizes in bytes; ``ram_available_bytes`` respects container limits."""

    cpu_model: str = "unknown"
    cores_physical: int = 0
    cores_logical: int = 0
    ram_total_bytes: int = 0
    ram_available_bytes: int = 0
    swap_total_bytes: int = 0
    disk_free_bytes: int = 0
    os: str = "unknown"
    python: str = ""
    accelerators: tuple[Accelerator, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One live lease. Times are monotonic seconds of the tracker that holds it."""

    node_id: NodeId
    wallet: Wallet
    url: str
    model_key: ModelKey
    revision: Revision
    n_layers: int
    shard: Shard
    dtype: str = "float32"
    hidden_size: int = 0
    context_length: int = 0
    epoch: int = 0
    """Rises with every registration of this wallet; frames carry it, so that a stale claim is noticed."""
    state: NodeState = "ready"
    name: str = ""
    """What its owner calls it; for display only."""
    benchmark_tokens_per_sec: float = DEFAULT_BENCHMARK_TPS
    tail_layers: float = 0.0
    """What norm, output head and sampling cost it a token, in the time of its layers; as the node measured it."""
    reputation: float = 1.0
    queue_depth: int = 0
    """Sessions waiting or running, as last heard in a heartbeat."""
    in_flight: int = 0
    """Calls this tracker has reserved on the node."""
    kv_free_bytes: int = 0
    kv_budget_bytes: int = 0
    sessions: int = 0
    hardware: HardwareProfile = field(default_factory=HardwareProfile)
    joined_at: float = 0.0
    heard_at: float = 0.0

    @property
    def is_head(self) -> bool:
        return self.shard.start == 0

    @property
    def is_tail(self) -> bool:
        return self.shard.end == self.n_layers - 1

    @property
    def work_layers(self) -> float:
        """What a token costs its whole shard, in the time of its layers."""
        return len(self.shard) + (self.tail_layers if self.is_tail else 0.0)

    @property
    def is_relayed(self) -> bool:
        """Whether it is reached through a relay."""
        return self.url.startswith("relay://")

    @property
    def load(self) -> int:
        """Queue as routing sees it: what the node said, or what we sent since, whichever is more."""
        return max(self.queue_depth, self.in_flight)

    def with_in_flight(self, in_flight: int) -> Node:
        return replace(self, in_flight=in_flight)


def effective_throughput(node: Node) -> float:
    """ADR-0013 section 4: ``benchmark_tokens_per_sec / (queue_depth + 1)``; a benchmark that is no positive finite
    number counts as the default."""
    benchmark = node.benchmark_tokens_per_sec
    if not (math.isfinite(benchmark) and benchmark > 0):
        benchmark = DEFAULT_BENCHMARK_TPS
    return benchmark / (max(node.load, 0) + 1)
