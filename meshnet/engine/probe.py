"""How fast a shard is, measured on scratch sessions of the engine itself, and what torch can run it on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from meshnet.domain.chat import Sampling
from meshnet.domain.engine import EngineSpeed, Rows, SessionKey, SessionPlan, ShardEngine, StepItem
from meshnet.domain.errors import Overloaded
from meshnet.domain.nodes import Accelerator

PROMPT_ROWS = 64
"""Rows of the timed prefill: long enough to be limited by arithmetic, short enough for seconds on a slow node."""
DECODE_STEPS = 8
"""Timed steps after one that warms up; the median of them counts."""
TAIL_ROUNDS = 12
"""Pairs of steps, with the last layer and the output head and without: their difference is a few layers' time."""
MOST_TAIL_LAYERS = 1000.0
"""What a tracker takes; a step that the system held up looks like more, and must not cost the node its heartbeats."""
BATCH = 8
MATRIX_SIZE = 1024
"""Of both factors: 2 GFLOP a product, milliseconds on any machine, and too large to be all overhead."""
COPIED_BYTES = 64 << 20
"""Larger than the caches of ordinary CPUs, so that memory is timed."""
RATE_RUNS = 3
_SCRATCH = -1
"""Session numbers below zero are never a call's."""


def measure(engine: ShardEngine, clock: Callable[[], float] = time.perf_counter) -> EngineSpeed:
    """Times prefill of one session, decode of one, and decode of eight at once, or of as many as the KV budget admits.
    Sessions are closed whatever comes. Raises Overloaded when not even one fits."""
    keys = [(_SCRATCH, number) for number in range(BATCH)]
    try:
        keys = _opened(engine, keys)
        engine.step([_item(engine, keys[0], 0, 1)])  # Warms caches and thread pools.
        prefill_s = _time(clock, lambda: engine.step([_item(engine, keys[0], 1, PROMPT_ROWS)]))
        for key in keys[1:]:
            engine.step([_item(engine, key, 0, PROMPT_ROWS + 1)])
        position = PROMPT_ROWS + 1
        one = [
            _time(clock, lambda at=position + n: engine.step([_item(engine, keys[0], at, 1)]))
            for n in range(DECODE_STEPS)
        ]
        many = [
            _time(
                clock,
                lambda n=n: engine.step(
                    [_item(engine, key, position + n + (DECODE_STEPS if key == keys[0] else 0), 1) for key in keys]
                ),
            )
            for n in range(DECODE_STEPS)
        ]
    finally:
        for key in keys:
            engine.close(key)
    median = statistics.median(one)
    extra = machine_rates(clock)
    if engine.shard.end == engine.facts.n_layers - 1 and len(engine.shard) > 1:
        extra["tail_layers"] = tail_layers(engine, clock)
    return EngineSpeed(
        decode_tps=1 / median,
        decode_batch8_tps=len(keys) / statistics.median(many),
        prefill_tps=PROMPT_ROWS / prefill_s,
        spread=(max(one) - min(one)) / median,
        extra=extra,
    )


def tail_layers(engine: ShardEngine, clock: Callable[[], float] = time.perf_counter) -> float:
    """What norm, output head and sampling cost a token, in the time of one of this shard's layers: from steps through
    the whole shard and through all but its last layer, in turn. 0 where the KV budget holds no two sessions."""
    whole, short = (_SCRATCH, 0), (_SCRATCH, 1)
    times: dict[SessionKey, list[float]] = {whole: [], short: []}
    opened = []
    try:
        for key, end in ((whole, engine.shard.end), (short, engine.shard.end - 1)):
            engine.open(key, _plan(engine, end))
            opened.append(key)
        for position in range(TAIL_ROUNDS):
            for key, found in times.items():
                found.append(_time(clock, lambda key=key, at=position: engine.step([_item(engine, key, at, 1)])))
    except Overloaded:
        return 0.0
    finally:
        for key in opened:
            engine.close(key)
    # The quickest of each: other work on the machine only ever adds.
    whole_s, short_s = min(times[whole][1:]), min(times[short][1:])
    found = (whole_s - short_s) / (short_s / (len(engine.shard) - 1)) - 1.0
    return min(max(0.0, found), MOST_TAIL_LAYERS)


def accelerators() -> tuple[Accelerator, ...]:
    """Devices torch sees beside the CPU."""
    found = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found.append(Accelerator(properties.name, f"cuda:{index}", properties.total_memory))
    if torch.backends.mps.is_available():
        found.append(Accelerator("Apple GPU", "mps"))
    return tuple(found)


def machine_rates(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """``matrix_gflops``: float32 products, the limit of prefill. ``memory_gb_s``: copies, the limit of decode."""
    a, b = torch.rand(MATRIX_SIZE, MATRIX_SIZE), torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8).fill_(1)
    target = torch.empty_like(source)
    torch.mm(a, b)  # Warms the thread pool.
    product_s = statistics.median(_time(clock, lambda: torch.mm(a, b)) for _ in range(RATE_RUNS))
    copy_s = statistics.median(_time(clock, lambda: target.copy_(source)) for _ in range(RATE_RUNS))
    return {
        "matrix_gflops": 2 * MATRIX_SIZE**3 / product_s / 1e9,
        # Each byte is read and written.
        "memory_gb_s": 2 * COPIED_BYTES / copy_s / 1e9,
    }


def _opened(engine: ShardEngine, keys: list[SessionKey]) -> list[SessionKey]:
    """Those of the sessions that fit, the first at least."""
    engine.open(keys[0], _plan(engine))
    for number, key in enumerate(keys[1:], 1):
        try:
            engine.open(key, _plan(engine))
        except Overloaded:
            return keys[:number]
    return keys


def _plan(engine: ShardEngine, end_layer: int | None = None) -> SessionPlan:
    return SessionPlan(
        engine.shard.start,
        engine.shard.end if end_layer is None else end_layer,
        reserve_tokens=PROMPT_ROWS + 1 + 2 * DECODE_STEPS,
        sampling=Sampling(temperature=0.0),
    )


def _item(engine: ShardEngine, key: tuple[int, int], position: int, rows: int) -> StepItem:
    facts = engine.facts
    if engine.shard.start == 0:
        ids = tuple((position + n) % facts.vocab_size for n in range(rows))
        return StepItem(key, position, token_ids=ids, sample=True)
    size = rows * facts.hidden_size
    values = torch.linspace(-1.0, 1.0, size).to(getattr(torch, facts.dtype))
    data = bytearray(values.view(torch.uint8).numpy().tobytes())
    return StepItem(key, position, rows=Rows(facts.dtype, (rows, facts.hidden_size), memoryview(data)), sample=True)


def _time(clock: Callable[[], float], run: Callable[[], object]) -> float:
    start = clock()
    run()
    return max(clock() - start, 1e-9)
