"""The one place that creates tasks: each is named, its reference kept, its failure reported, its end awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 1.0
"""How long a cancelled task may clean up: promised to operators as part of a stop within 5 s."""


class Tasks:
    """The background tasks of one owner. ``close`` cancels and awaits them all."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], name: str, *, quiet: bool = False) -> asyncio.Task[Any]:
        """Run ``work`` in the background under this owner's care. ``quiet``: whoever awaits it handles its failure."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._name} is closed and starts no {name}")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._running.add(task)
        task.add_done_callback(self._ended_quietly if quiet else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed task=%s error=%r", task.get_name(), error, exc_info=error)

    def _ended_quietly(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # Seen: an awaiter that was cancelled meanwhile must not make the loop complain.

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel everything and wait for it; what outlives the timeout is named in the log."""
        self._closed = True
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if not running:
            return
        _, pending = await asyncio.wait(running, timeout=timeout_s)
        for task in pending:
            log.warning("task does not end task=%s", task.get_name())


async def every(tick: Callable[[], Awaitable[object]], interval_s: Callable[[], float], name: str) -> None:
    """A loop: ``tick``, then sleep for ``interval_s()`` (asked each time, so that callers can add jitter or back off).

    A tick that fails is logged and the loop goes on: one bad round must not end a heartbeat.
    """
    while True:
        try:
            await tick()
        except Exception:
            log.exception("loop round failed loop=%s", name)
        await asyncio.sleep(interval_s())


def outcome_of(work: Callable[[], T]) -> T | Exception:
    """What ``work`` returns, or what it raised as a value: for a thread that must outlive whatever it runs."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (the caller reports it)
        return error
