"""When a node's benchmark is taken: at the first start with a shard, and again when it is old and nobody is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from daemons.kit.tasks import every
from daemons.node.speed import read_speed, save_speed
from meshnet.domain.engine import EngineSpeed

log = logging.getLogger(__name__)

MEASURE_AGAIN_S = 6 * 3600.0
"""A benchmark older than this is taken again when the node is idle: machines get other work, clocks throttle."""
STEADY_SPREAD = 0.5
"""A measurement that varied more was taken on a busy machine: it is used, but not remembered for the next start."""


class Benchmark:
    """Of one shard under ``key``, remembered in ``folder``. ``take`` measures; ``is_busy`` says whether that would keep
    anyone waiting; ``tell`` hears of every measurement that holds from now on."""

    def __init__(
        self,
        folder: Path,
        key: str,
        take: Callable[[], Awaitable[EngineSpeed]],
        is_busy: Callable[[], bool],
        tell: Callable[[EngineSpeed], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._key = key
        self._take = take
        self._is_busy = is_busy
        self._tell = tell

    async def at_start(self) -> None:
        """What is remembered of this very shard and machine, else a measurement."""
        speed = read_speed(self._folder, self._key)
        if speed is None:
            speed = await self._measured()
        await self._tell(speed)

    async def when_idle(self) -> None:
        """Others may use the machine by now; only an idle node learns what it can do."""
        if not self._is_busy():
            await self._tell(await self._measured())

    async def keep(self, interval_s: float = MEASURE_AGAIN_S) -> None:
        """Measure again each interval, until cancelled."""
        await asyncio.sleep(interval_s)
        await every(self.when_idle, lambda: interval_s, "measure")

    async def _measured(self) -> EngineSpeed:
        speed = await self._take()
        if speed.spread <= STEADY_SPREAD:
            save_speed(self._folder, self._key, speed)
        log.info(
            "measured decode_tps=%.1f batch8_tps=%.1f prefill_tps=%.1f spread=%.2f",
            speed.decode_tps,
            speed.decode_batch8_tps,
            speed.prefill_tps,
            speed.spread,
        )
        return speed
