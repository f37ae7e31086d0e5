"""The worker: one thread that owns the engine. The event loop hands it rows and gets results; neither polls.

Rows submitted within one turn of the loop reach the thread together, so that sessions which arrive in one message
leave in one step. Results of a step come back in one call to ``on_results``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

from daemons.kit.tasks import outcome_of
from daemons.node.admission import OUT_OF_MEMORY, Admission
from daemons.node.packing import Packer, Step
from meshnet.domain.engine import KvUse, SessionKey, SessionPlan, ShardEngine, StepItem, StepResult
from meshnet.domain.errors import MeshnetError, NodeFailed, Overloaded

log = logging.getLogger(__name__)

T = TypeVar("T")

JOIN_S = 1.0
"""How long a stop waits for the step in progress; the process ends within 5 s anyway."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One session's part of a finished step. Microseconds it waited here, and that its step took."""

    item: StepItem
    result: StepResult
    queued_us: int
    computing_us: int


OnResults = Callable[[Sequence[Computed]], None]


class Worker:
    """Start it once with a function that makes the engine (loading takes place in the thread)."""

    def __init__(self, on_results: OnResults, now: Callable[[], float] = time.monotonic) -> None:
        self._on_results = on_results
        self._admission = Admission(now)
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outbox: list[StepItem] = []
        self._packer = Packer()
        self._engine: ShardEngine | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy: Counter[SessionKey] = Counter()
        self._stopped = False
        self.computing: frozenset[SessionKey] = frozenset()
        """Sessions of the step in progress. Written by the thread, read by anyone."""
        self.kv = KvUse(0, 0, 0)
        self.forward_steps = 0
        self.rows_computed = 0

    async def start(self, make_engine: Callable[[], ShardEngine]) -> ShardEngine:
        """Start the thread and load. Raises what ``make_engine`` raises."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()
        return await self._ask(lambda: self._load(make_engine))

    async def open(self, key: SessionKey, plan: SessionPlan) -> None:
        """Reserve. Raises Overloaded or InvalidRequest as the engine does."""
        await self._ask(lambda: self._open(key, plan))

    def close(self, key: SessionKey) -> None:
        """Free after the step in progress; rows that still wait are dropped."""
        self._busy.pop(key, None)
        self._put(lambda: self._close(key))

    async def call(self, work: Callable[[ShardEngine], T]) -> T:
        """Run ``work`` between two steps."""
        return await self._ask(lambda: work(self._require_engine()))

    def submit(self, item: StepItem) -> None:
        """Rows to compute; results come to ``on_results``."""
        self._busy[item.key] += item.n_rows
        if not self._outbox:
            assert self._loop is not None
            self._loop.call_soon(self._flush)
        self._outbox.append(item)

    def waits(self, key: SessionKey) -> bool:
        """Whether rows of this session wait here or are being computed."""
        return self._busy[key] > 0

    @property
    def queue_depth(self) -> int:
        return sum(1 for rows in self._busy.values() if rows > 0)

    async def stop(self) -> None:
        """End after the step in progress."""
        self._stopped = True
        self._put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, JOIN_S)

    # ---- in the loop

    def _put(self, command: Callable[[], None] | None) -> None:
        if self._outbox:
            self._flush()  # Commands must not overtake rows that were submitted before them.
        self._queue.put(command)

    def _flush(self) -> None:
        if not self._outbox:
            return
        items, self._outbox, now_ns = self._outbox, [], time.perf_counter_ns()
        self._queue.put(lambda: self._add(items, now_ns))

    async def _ask(self, work: Callable[[], T]) -> T:
        if self._loop is None or self._stopped:
            raise NodeFailed("This node's worker is not running.", code="shutting_down")
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(lambda: self._answer(future, outcome_of(work)))
        return await future

    def _deliver(self, computed: Sequence[Computed]) -> None:
        for part in computed:
            key = part.item.key
            if key in self._busy:
                self._busy[key] -= part.item.n_rows
        self._on_results(computed)

    # ---- in the thread

    def _run(self) -> None:
        while True:
            command = self._queue.get()
            while True:
                if command is None:
                    return
                command()
                try:
                    command = self._queue.get_nowait()
                except Empty:
                    break
            if not self._compute_all():
                return

    def _compute_all(self) -> bool:
        """Step until nothing waits, taking in what arrives between two steps. False when told to stop."""
        while (step := self._packer.next_step(time.monotonic())) is not None:
            self._compute(step)
            while True:
                try:
                    command = self._queue.get_nowait()
                except Empty:
                    break
                if command is None:
                    return False
                command()
        return True

    def _compute(self, step: Step) -> None:
        engine = self._require_engine()
        self.computing = frozenset(item.key for item in step.items)
        start_ns = time.perf_counter_ns()
        results = outcome_of(lambda: engine.step(step.items))
        computing_us = (time.perf_counter_ns() - start_ns) // 1000
        self.forward_steps += 1
        self.rows_computed += sum(item.n_rows for item in step.items)
        if isinstance(results, Exception):
            results = _all_failed(step, results)
        self._admission.saw(results)
        computed = [
            Computed(item, result, max(0, start_ns - since) // 1000, computing_us)
            for item, result, since in zip(step.items, results, step.since_ns, strict=True)
        ]
        self.computing = frozenset()
        self._tell(lambda: self._deliver(computed))

    def _load(self, make_engine: Callable[[], ShardEngine]) -> ShardEngine:
        self._engine = make_engine()
        self.kv = self._engine.kv_use()
        return self._engine

    def _open(self, key: SessionKey, plan: SessionPlan) -> None:
        engine = self._require_engine()
        needed = plan.reserve_tokens * engine.kv_bytes_per_token(plan.start_layer, plan.end_layer)
        self._admission.require(engine.kv_use(), needed)
        failure = outcome_of(lambda: engine.open(key, plan))
        if isinstance(failure, Exception):
            self._admission.heard(failure)
            raise failure
        self._packer.open(key, plan.start_layer, plan.end_layer, len(plan.prompt_ids) + len(plan.produced_ids))
        self.kv = self._admission.shown(engine.kv_use())

    def _close(self, key: SessionKey) -> None:
        engine = self._engine
        if engine is None:
            return
        self._packer.close(key)
        failure = outcome_of(lambda: engine.close(key))
        if isinstance(failure, Exception):
            log.error("engine close failed error=%r", failure, exc_info=failure)
        self.kv = self._admission.shown(engine.kv_use())

    def _add(self, items: Sequence[StepItem], at_ns: int) -> None:
        for item in items:
            self._packer.add(item, at_ns)

    def _answer(self, future: asyncio.Future[T], outcome: T | Exception) -> None:
        def settle() -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(cast(T, outcome))

        self._tell(settle)

    def _tell(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            log.info("event loop ended while the worker computed")

    def _require_engine(self) -> ShardEngine:
        if self._engine is None:
            raise NodeFailed("This node is still loading its shard.", code="loading")
        return self._engine


def _all_failed(step: Step, error: Exception) -> list[StepResult]:
    """A step that raised: its sessions end, the node lives on."""
    log.error("step failed sessions=%d error=%r", len(step.items), error, exc_info=error)
    if isinstance(error, MemoryError):
        error = Overloaded("This node has no memory left for this session.", code=OUT_OF_MEMORY)
    elif not isinstance(error, MeshnetError):
        error = NodeFailed(f"The engine failed in layers {step.start_layer}-{step.end_layer}.", code="engine_failed")
    return [StepResult(item.key, error=error) for item in step.items]
