"""The development setting ``delay_per_layer_ms``: an engine that is slower by so much a layer and step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from daemons.node.wrapped import WrappedEngine
from meshnet.domain.engine import EngineSpeed, SessionKey, SessionPlan, ShardEngine, StepItem, StepResult


class SlowedEngine(WrappedEngine):
    """The delay counts as computing, and in what it measures of itself."""

    def __init__(
        self, inner: ShardEngine, delay_per_layer_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._delay_s = delay_per_layer_s
        self._sleep = sleep
        self._layers: dict[SessionKey, int] = {}

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        self._inner.open(key, plan)
        self._layers[key] = plan.end_layer - plan.start_layer + 1

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        results = self._inner.step(items)
        self._sleep(self._delay_s * max(self._layers.get(item.key, 0) for item in items))
        return results

    def close(self, key: SessionKey) -> None:
        self._layers.pop(key, None)
        self._inner.close(key)

    def measure(self) -> EngineSpeed:
        speed = self._inner.measure()
        step_s = self._delay_s * len(self.shard)
        return replace(
            speed,
            decode_tps=1 / (1 / speed.decode_tps + step_s),
            decode_batch8_tps=8 / (8 / speed.decode_batch8_tps + step_s),
            extra={**speed.extra, **self._tail(speed)},
        )

    def _tail(self, speed: EngineSpeed) -> dict[str, float]:
        """The output head is not slowed, so that it is worth fewer layers."""
        tail = speed.extra.get("tail_layers")
        if tail is None:
            return {}
        layer_s = 1 / (speed.decode_tps * (len(self.shard) + tail))
        return {"tail_layers": tail * layer_s / (layer_s + self._delay_s)}
