"""The decision log: a line of JSON for every decision with what came of it, in a ring of two files.

Lines are made at once and written by a thread of its own a second later; nothing waits for the disk. A disk that is
full or slow costs lines, which are counted, never calls.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from daemons.tracker.planner import Plan
from meshnet.domain.decision_log import OLDER_ENDING, decision_row
from meshnet.domain.routing import Outcome

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""Between writes: what a killed tracker loses of its log at most."""
MAX_WAITING = 10_000
"""Lines not yet written, 2 KB each: more only pile up while the disk hangs."""


class DecisionLog:
    """``path`` and the file before it, ``<path>.1``, with ``max_bytes`` together; ``boot`` marks this process's lines:
    their stamps and epochs mean nothing beside another's."""

    def __init__(self, path: Path, boot: str, max_bytes: int) -> None:
        self._path = path
        self._boot = boot
        self._max_bytes = max_bytes
        self._waiting: list[bytes] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="decisions")
        self.lost = 0
        """Lines that could not be written."""

    def add(self, plan: Plan, outcome: Outcome) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.lost += 1
            return
        row = decision_row(plan.decision, plan.candidates, outcome, self._boot)
        self._waiting.append(msgspec.json.encode(row) + b"\n")

    async def flush(self) -> None:
        """Write what waits. A failure is logged and its lines are lost: they describe the past."""
        lines, self._waiting = self._waiting, []
        if not lines:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write, b"".join(lines))
        except OSError as error:
            self.lost += len(lines)
            log.warning("decisions not written path=%s lost=%d reason=%s", self._path, self.lost, error.strerror)

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(data) > self._max_bytes // 2:
            self._path.replace(before(self._path))
        with self._path.open("ab") as file:
            file.write(data)

    async def close(self) -> None:
        await self.flush()
        self._writer.shutdown()


def before(path: Path) -> Path:
    """Where the older half of the ring lies."""
    return path.with_name(path.name + OLDER_ENDING)
