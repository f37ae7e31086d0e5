"""Sessions of this node: who owns each, which rows come next, and what a frame must be before anything is computed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemons.kit.link import Link
from daemons.node.packing import join_rows
from meshnet.domain.engine import Rows, SessionKey, StepItem
from meshnet.domain.errors import Conflict, FrameError, Overloaded
from meshnet.wire.frames import Hidden, SessionRows
from meshnet.wire.messages import HopMessage

MAX_SESSIONS = 256
"""As many as one packed step and one frame hold; KV is full long before on ordinary machines."""
MAX_CANCELLED = 1024
"""Cancels remembered that overtook their OPEN: more than can be under way at once."""


@dataclass(slots=True, eq=False)
class Session:
    """One attempt of one generation on this node, executing start_layer..end_layer."""

    key: SessionKey
    hops: tuple[HopMessage, ...]
    index: int
    known_tokens: int
    """Prompt and replayed tokens: rows before this position are prefill."""
    reserve_tokens: int
    upstream: Link | None = None
    """Whom rows come from; None on the head."""
    downstream: Link | None = None
    """Whom rows go to; the head for the tail; None on a route of one node."""
    received: int = 0
    """Position of the next row to come in."""
    sent: int = 0
    """Position behind the last row (or token) that left."""
    step_in: int = 0
    step_out: int = 0
    hop_us: tuple[tuple[int, int], ...] = ()
    pieces: list[Rows] = field(default_factory=list)
    """Rows of a step of which more is to come."""
    used_at: float = 0.0

    @property
    def hop(self) -> HopMessage:
        return self.hops[self.index]

    @property
    def next_hop(self) -> HopMessage:
        return self.hops[self.index + 1]

    @property
    def head_id(self) -> str:
        return self.hops[0].node_id

    @property
    def is_tail(self) -> bool:
        return self.index == len(self.hops) - 1

    def take(self, frame: Hidden, part: SessionRows, rows: Rows) -> StepItem | None:
        """Checked rows as an item to compute, or None while more of the step is to come. Raises FrameError."""
        self._check(frame, part)
        self.received += part.n_rows
        self.pieces.append(rows)
        if part.more:
            return None
        self.step_in += 1
        self.hop_us = part.hop_us
        whole, self.pieces = join_rows(self.pieces), []
        return StepItem(self.key, self.received - whole.shape[0], rows=whole, sample=part.sample)

    def _check(self, frame: Hidden, part: SessionRows) -> None:
        hop = self.hop
        if (frame.start_layer, frame.end_layer) != (hop.start_layer, hop.end_layer):
            raise FrameError(
                f"layers {frame.start_layer}-{frame.end_layer}; this session runs {hop.start_layer}-{hop.end_layer}"
            )
        if (part.position, part.step) != (self.received, self.step_in):
            raise FrameError(
                f"position {part.position} step {part.step}; {self.received} step {self.step_in} comes next"
            )
        if part.position + part.n_rows > self.reserve_tokens:
            raise FrameError(f"position {part.position + part.n_rows} is beyond the {self.reserve_tokens} reserved")


class Sessions:
    """The table. A key is added once and removed once; whoever removes it frees its KV."""

    def __init__(self) -> None:
        self._all: dict[SessionKey, Session] = {}
        self._cancelled: OrderedDict[SessionKey, str] = OrderedDict()
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._all.values()))

    def get(self, key: SessionKey) -> Session | None:
        return self._all.get(key)

    def add(self, session: Session) -> None:
        """Raises Conflict (key in use, or cancelled before it was opened) or Overloaded (too many)."""
        if session.key in self._all:
            raise Conflict(f"session {session.key} is already open here.")
        if self._cancelled.pop(session.key, None) == session.head_id:
            raise Conflict(f"session {session.key} was cancelled.", code="cancelled")
        if len(self._all) >= MAX_SESSIONS:
            raise Overloaded(f"{MAX_SESSIONS} sessions are open here already.")
        self._all[session.key] = session
        self.none_left.clear()

    def remove(self, key: SessionKey) -> Session | None:
        session = self._all.pop(key, None)
        if not self._all:
            self.none_left.set()
        return session

    def remember_cancelled(self, key: SessionKey, head_id: str) -> None:
        """A cancel that came before its OPEN, from this head."""
        self._cancelled[key] = head_id
        while len(self._cancelled) > MAX_CANCELLED:
            self._cancelled.popitem(last=False)

    def on_link(self, link: Link) -> list[Session]:
        """Sessions that die with this link."""
        return [s for s in self._all.values() if s.upstream is link or s.downstream is link]
