"""An engine that is another one in everything: what stands before it overrides what it changes."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.domain.engine import (
    EngineSpeed,
    KvUse,
    ModelFacts,
    Rows,
    SessionKey,
    SessionPlan,
    ShardEngine,
    StepItem,
    StepResult,
)
from meshnet.domain.shards import Shard


class WrappedEngine:
    """Fulfils ShardEngine by ``inner``."""

    def __init__(self, inner: ShardEngine) -> None:
        self._inner = inner

    @property
    def facts(self) -> ModelFacts:
        return self._inner.facts

    @property
    def shard(self) -> Shard:
        return self._inner.shard

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        self._inner.open(key, plan)

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        return self._inner.step(items)

    def close(self, key: SessionKey) -> None:
        self._inner.close(key)

    def forward(self, rows: Rows | Sequence[int], start_layer: int, end_layer: int) -> Rows:
        return self._inner.forward(rows, start_layer, end_layer)

    def kv_use(self) -> KvUse:
        return self._inner.kv_use()

    def kv_bytes_per_token(self, start_layer: int, end_layer: int) -> int:
        return self._inner.kv_bytes_per_token(start_layer, end_layer)

    def measure(self) -> EngineSpeed:
        return self._inner.measure()
