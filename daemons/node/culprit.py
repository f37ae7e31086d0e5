"""Who is to blame for a silent session: a pure reading of the hops' answers to PROBE (docs/design.md section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.wire.messages import HopMessage, Probed


@dataclass(frozen=True, slots=True)
class Blame:
    """``culprit`` is the node to avoid; ``code`` says how we know."""

    culprit: str
    code: str
    why: str

    @property
    def may_be_in_flight(self) -> bool:
        """Whether rows between two hops would look the same at this moment."""
        return self.code in ("edge", "stalled")


def blame(hops: Sequence[HopMessage], answers: Sequence[Probed | None], awaited: int) -> Blame | None:
    """The first hop, in ring order, that is silent, has lost the session, or has rows and does nothing with them; or
    the hop behind an edge on which rows were lost. None: somebody queues or computes, or all is well.

    ``answers`` in the order of ``hops``, None for silence. ``awaited``: the position behind the last row fed in.
    """
    arriving = awaited
    before: HopMessage | None = None
    for hop, answer in zip(hops, answers, strict=True):
        if answer is None:
            return Blame(hop.node_id, "silent", f"{hop.node_id} does not answer.")
        if not answer.known:
            return Blame(hop.node_id, "session_lost", f"{hop.node_id} no longer knows the session.")
        if answer.queued or answer.computing:
            return None
        if answer.received < arriving:
            source = before.node_id if before is not None else "the head"
            return Blame(hop.node_id, "edge", f"Rows from {source} do not reach {hop.node_id}.")
        if answer.sent < answer.received:
            return Blame(hop.node_id, "stalled", f"{hop.node_id} has rows, but does not compute.")
        arriving, before = answer.sent, hop
    return Blame(hops[-1].node_id, "edge", f"Tokens of {hops[-1].node_id} do not reach the head.")
