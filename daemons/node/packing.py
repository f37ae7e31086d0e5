"""What goes into the next packed step: pure bookkeeping of rows that wait, no thread and no engine.

Decode rows (one a session, and a stream waits for it) all go at once. Prefill rows fill up: a long prompt must neither
starve the streams nor be computed a row at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from meshnet.domain.engine import ITEMSIZE, Rows, SessionKey, StepItem

PREFILL_ROWS = 256
"""Prefill rows of a step when nothing decodes: by then the weights are read once for enough rows to be bound by
arithmetic, and a step still ends in a fraction of a second. Raising it delays whoever comes next."""
PREFILL_ROWS_BESIDE_DECODE = 32
"""While streams run: 32 rows cost about as much as the step itself, so a stream slows to half at worst."""
DECODE_RECENT_S = 0.5
"""A stream whose last row left less than this ago is on its way around the ring and will be back: still decoding."""


@dataclass(slots=True)
class Waiting:
    """One session's rows that were submitted and not computed yet, in order. ``known_tokens``: prompt and replayed
    tokens; rows before that position are prefill."""

    start_layer: int
    end_layer: int
    known_tokens: int
    chunks: deque[tuple[StepItem, int]] = field(default_factory=deque)
    """With the clock's nanoseconds at which each was submitted."""
    decoded_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Step:
    """Items of one engine step; all run the same layers. ``since_ns`` tells how long each had waited."""

    start_layer: int
    end_layer: int
    items: tuple[StepItem, ...]
    since_ns: tuple[int, ...]


class Packer:
    """Rows in, steps out. Owned by the worker's thread."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, Waiting] = {}
        self._turn: deque[SessionKey] = deque()
        """Sessions with rows waiting, in the order in which they are served."""

    def open(self, key: SessionKey, start_layer: int, end_layer: int, known_tokens: int) -> None:
        self._sessions[key] = Waiting(start_layer, end_layer, known_tokens)

    def close(self, key: SessionKey) -> None:
        self._sessions.pop(key, None)
        if key in self._turn:
            self._turn.remove(key)

    def add(self, item: StepItem, at_ns: int) -> None:
        """Rows of an open session; those of a closed one came too late and are dropped."""
        waiting = self._sessions.get(item.key)
        if waiting is None:
            return
        if not waiting.chunks:
            self._turn.append(item.key)
        waiting.chunks.append((item, at_ns))

    def __bool__(self) -> bool:
        return bool(self._turn)

    def next_step(self, now: float) -> Step | None:
        """The first waiting session's range decides the layers; everything ready for the same layers travels along."""
        if not self._turn:
            return None
        lead = self._sessions[self._turn[0]]
        room = self._prefill_room(now)
        items: list[StepItem] = []
        since: list[int] = []
        for key in list(self._turn):
            waiting = self._sessions[key]
            if (waiting.start_layer, waiting.end_layer) != (lead.start_layer, lead.end_layer):
                continue
            item, at_ns = waiting.chunks[0]
            if item.position >= waiting.known_tokens:
                waiting.decoded_at = now
            elif room == 0:
                continue
            else:
                item = self._take(waiting, room)
                room -= item.n_rows
            items.append(item)
            since.append(at_ns)
            self._served(key, waiting, item)
        return Step(lead.start_layer, lead.end_layer, tuple(items), tuple(since))

    def _prefill_room(self, now: float) -> int:
        for waiting in self._sessions.values():
            ready = waiting.chunks and waiting.chunks[0][0].position >= waiting.known_tokens
            if ready or now - waiting.decoded_at < DECODE_RECENT_S:
                return PREFILL_ROWS_BESIDE_DECODE
        return PREFILL_ROWS

    def _take(self, waiting: Waiting, room: int) -> StepItem:
        """Up to ``room`` rows from the front: parts of a chunk, or several that follow each other."""
        first, _ = waiting.chunks[0]
        if first.n_rows > room:
            return cut_item(first, room)[0]
        parts = [first]
        rows = first.n_rows
        for item, _ in list(waiting.chunks)[1:]:
            if rows + item.n_rows > room or item.position >= waiting.known_tokens:
                break
            parts.append(item)
            rows += item.n_rows
        return join_items(parts)

    def _served(self, key: SessionKey, waiting: Waiting, taken: StepItem) -> None:
        left = taken.n_rows
        while left:
            item, at_ns = waiting.chunks.popleft()
            if item.n_rows > left:
                waiting.chunks.appendleft((cut_item(item, left)[1], at_ns))
                left = 0
            else:
                left -= item.n_rows
        self._turn.remove(key)
        if waiting.chunks:
            self._turn.append(key)


def cut_item(item: StepItem, rows: int) -> tuple[StepItem, StepItem]:
    """The first ``rows`` rows and the rest, as views; only the rest can end the known tokens."""
    rest = item.position + rows
    if item.token_ids is not None:
        return (
            replace(item, token_ids=item.token_ids[:rows], sample=False),
            replace(item, token_ids=item.token_ids[rows:], position=rest),
        )
    assert item.rows is not None
    count, hidden = item.rows.shape
    data, at = memoryview(item.rows.data), rows * hidden * ITEMSIZE[item.rows.dtype]
    return (
        replace(item, rows=Rows(item.rows.dtype, (rows, hidden), data[:at]), sample=False),
        replace(item, rows=Rows(item.rows.dtype, (count - rows, hidden), data[at:]), position=rest),
    )


def join_items(parts: list[StepItem]) -> StepItem:
    """Items of one session that follow each other, as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if first.token_ids is not None:
        ids = tuple(token for part in parts for token in part.token_ids or ())
        return replace(first, token_ids=ids, sample=parts[-1].sample)
    rows = join_rows([part.rows for part in parts if part.rows is not None])
    return replace(first, rows=rows, sample=parts[-1].sample)


def join_rows(pieces: list[Rows]) -> Rows:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    count = sum(piece.shape[0] for piece in pieces)
    return Rows(first.dtype, (count, first.shape[1]), b"".join(piece.data for piece in pieces))
