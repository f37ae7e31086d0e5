"""What lies between a call and the client's connection: the text not yet written, bounded, and the call's end."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from meshnet.domain.errors import MeshnetError
from meshnet.wire.messages import Delta, Finished, TokenLogprob

MAX_BYTES = 256 * 1024
"""Text waiting for a client that reads slower than the ring writes: some 60,000 tokens. A client this far behind is
treated as gone; raising it costs memory for every slow client."""
LOGPROB_BYTES = 64
"""A token's logprob with one alternative, about; each of them is counted with so many."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that came since the last read; deltas that waited together are one."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Outbox:
    """One writer that never waits (the link's reader), one reader that does (the client's handler)."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._texts: deque[Delta] = deque()
        self._bytes = 0
        self._end: Finished | MeshnetError | None = None
        self._news = asyncio.Event()

    def put(self, delta: Delta) -> bool:
        """False when the reader is too far behind; the delta is then lost."""
        size = _size(delta)
        if self._bytes + size > self._max_bytes:
            return False
        if delta.text or delta.logprobs:
            self._texts.append(delta)
            self._bytes += size
            self._news.set()
        return True

    def close(self, end: Finished | MeshnetError) -> None:
        """How the call ended; the first end stays. What was put before is still read."""
        if self._end is None:
            self._end = end
            self._news.set()

    async def get(self, timeout_s: float) -> Text | Finished | MeshnetError | None:
        """All text since the last call, else the end, else None after ``timeout_s``."""
        if not self._texts and self._end is None:
            self._news.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._take() if self._texts else self._end

    def _take(self) -> Text:
        text = "".join(delta.text for delta in self._texts)
        logprobs = tuple(lp for delta in self._texts for lp in delta.logprobs)
        self._texts.clear()
        self._bytes = 0
        return Text(text, logprobs)


def _size(delta: Delta) -> int:
    return 4 * len(delta.text) + sum(LOGPROB_BYTES * (1 + len(lp.top)) for lp in delta.logprobs)
