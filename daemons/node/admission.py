"""What a node still takes: all its KV budget, or half of it for a while after memory ran out in the middle of a step.

The budget was a guess made at the start; the system's refusal is the truth about now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from meshnet.domain.engine import KvUse, StepResult
from meshnet.domain.errors import MeshnetError, Overloaded

log = logging.getLogger(__name__)

OUT_OF_MEMORY = "node_oom"
"""The code of a session that ended because there was no memory for it."""
HALVED_S = 60.0
"""As long as most answers take: by then what filled the memory is gone, or the next step says so again."""


class Admission:
    """Owned by the worker's thread; ``now`` is monotonic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._halved_until = float("-inf")

    def shown(self, use: KvUse) -> KvUse:
        """``use`` with the budget as it is now."""
        return replace(use, budget_bytes=use.budget_bytes // 2) if self.is_halved else use

    @property
    def is_halved(self) -> bool:
        return self._now() < self._halved_until

    def require(self, use: KvUse, needed_bytes: int) -> None:
        """Raises Overloaded when the halved budget has no room for so much more."""
        left = self.shown(use).budget_bytes - use.reserved_bytes
        if self.is_halved and needed_bytes > left:
            raise Overloaded(
                f"This node ran out of memory a moment ago and takes half as much: {needed_bytes} bytes of KV are "
                f"wanted, {max(0, left)} are left.",
                code="kv_full",
            )

    def heard(self, error: Exception | None) -> None:
        """Of every session that failed."""
        if isinstance(error, MeshnetError) and error.code == OUT_OF_MEMORY:
            if not self.is_halved:
                log.warning("out of memory; admission halved for_s=%.0f", HALVED_S)
            self._halved_until = self._now() + HALVED_S

    def saw(self, results: Iterable[StepResult]) -> None:
        for result in results:
            if result.error is not None:
                self.heard(result.error)
