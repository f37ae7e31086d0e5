"""The benchmark: taken once, remembered, taken again when old and idle."""

from __future__ import annotations

import asyncio
from pathlib import Path

from daemons.node.measuring import Benchmark
from daemons.node.speed import read_speed
from meshnet.domain.engine import EngineSpeed

KEY = "rev 0-14 float32 threads=1/2 delay=0"


def speed(tps: float, spread: float = 0.1) -> EngineSpeed:
    return EngineSpeed(
        decode_tps=tps, decode_batch8_tps=4 * tps, prefill_tps=9 * tps, spread=spread, extra={"gflops": 1.0}
    )


class Machine:
    """Measures what it is told to, slower each time."""

    def __init__(self, folder: Path, spread: float = 0.1) -> None:
        self.told: list[float] = []
        self.taken = 0
        self.busy = False
        self.stirred = asyncio.Event()
        self._spread = spread
        self.benchmark = Benchmark(folder, KEY, self.take, lambda: self.busy, self.tell)

    async def take(self) -> EngineSpeed:
        self.taken += 1
        return speed(100.0 / self.taken, self._spread)

    async def tell(self, found: EngineSpeed) -> None:
        self.told.append(found.decode_tps)
        self.stirred.set()


async def test_first_start_measures_and_the_next_remembers(tmp_path: Path) -> None:
    first, second = Machine(tmp_path), Machine(tmp_path)
    await first.benchmark.at_start()
    await second.benchmark.at_start()
    assert (first.told, first.taken) == ([100.0], 1)
    assert (second.told, second.taken) == ([100.0], 0)


async def test_old_benchmark_is_taken_again_when_nobody_is_served(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    await machine.benchmark.at_start()
    machine.busy = True
    await machine.benchmark.when_idle()
    assert machine.told == [100.0]
    machine.busy = False
    machine.stirred.clear()
    keeping = asyncio.ensure_future(machine.benchmark.keep(0.0))
    await asyncio.wait_for(machine.stirred.wait(), 5.0)
    keeping.cancel()
    assert machine.told[:2] == [100.0, 50.0]
    remembered = read_speed(tmp_path, KEY)
    assert remembered is not None and remembered.decode_tps < 100.0


async def test_unsteady_measurement_holds_but_is_not_remembered(tmp_path: Path) -> None:
    machine = Machine(tmp_path, spread=0.8)
    await machine.benchmark.at_start()
    assert machine.told == [100.0]
    assert read_speed(tmp_path, KEY) is None
