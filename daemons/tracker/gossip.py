"""Sharing demand with other trackers: slices there and back, one round trip per peer and interval (ADR-0030).

A peer that is down is asked ever more rarely and slows nothing: each has its own loop, requests have none of this in
their way. Slices travel as their origins signed them, through whomever (ADR-0042). What a slice means and how slices
merge is ``domain.demand``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.tasks import Tasks, every
from meshnet.domain.demand import DemandStats
from meshnet.domain.errors import MeshnetError
from meshnet.wire import api
from meshnet.wire.demand import GossipMessage, PeerStats
from meshnet.wire.slices import open_slice, sign_slice

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
"""Between two exchanges with one peer. Demand is looked at by the hour, so ten seconds are no delay."""
JITTER = 0.2
"""Up to a fifth earlier or later, so that trackers started together do not talk in step."""
MOST_S = 120.0
"""A peer that stays down is asked this often, so that it counts again two minutes after its return at most."""
SKEW_S = 60.0
"""A peer whose clock is off by more is named: its buckets are a minute wide."""
HEAD_BYTES = 256
"""Of a message beside its slices, to stay below the cap on bodies."""


class Peer(Protocol):
    """Another tracker: ``meshnet.client.tracker.TrackerClient``, or one that a test scripts."""

    @property
    def url(self) -> str: ...
    async def gossip(self, message: GossipMessage) -> GossipMessage: ...


class _Line:
    """What is known of one peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.tracker_id = ""
        self.heard_at: float | None = None
        self.failures = 0
        self.error = ""


class Gossip:
    """``now`` is monotonic; ``now_wall`` dates buckets. ``key`` signs our own slice, whose id is its wallet; without
    one we vouch for no counts and only pass on what others signed."""

    def __init__(
        self,
        demand: DemandStats,
        peers: Sequence[Peer],
        now: Callable[[], float],
        now_wall: Callable[[], float],
        rng: Random,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        self._demand = demand
        self._lines = [_Line(peer) for peer in peers]
        self._now = now
        self._now_wall = now_wall
        self._rng = rng
        self._key = key

    def start(self, tasks: Tasks) -> None:
        """One loop per peer."""
        for number, line in enumerate(self._lines):
            loop = every(lambda line=line: self._exchange(line), lambda line=line: self._delay_s(line), "gossip")
            tasks.start(loop, f"gossip-{number}")

    async def tick(self) -> None:
        """One exchange with each peer, one after the other."""
        for line in self._lines:
            await self._exchange(line)

    def answer(self, message: GossipMessage, key_id: str = "") -> GossipMessage:
        """Take in what a peer sends, under the key that let it in; give what we have. Raises InvalidRequest for a slice
        beyond its bounds or not signed by its origin; then nothing of the message is taken."""
        self._merge(message, f"key {key_id}")
        return self._message()

    def peers(self) -> tuple[PeerStats, ...]:
        now = self._now()
        return tuple(
            PeerStats(
                url=line.peer.url,
                tracker_id=line.tracker_id,
                up=line.heard_at is not None and line.failures == 0,
                age_s=None if line.heard_at is None else round(now - line.heard_at, 3),
                error=line.error,
            )
            for line in self._lines
        )

    async def _exchange(self, line: _Line) -> None:
        try:
            answer = await line.peer.gossip(self._message())
            line.error = self._merge(answer, line.peer.url)
        except MeshnetError as error:
            line.failures += 1
            line.error = error.message
            if line.failures == 1:
                log.warning("peer tracker does not answer url=%s reason=%s", line.peer.url, error.message)
            return
        if line.failures:
            log.info("peer tracker answers again url=%s after=%d", line.peer.url, line.failures)
        line.tracker_id, line.heard_at, line.failures = answer.sender, self._now(), 0

    def _delay_s(self, line: _Line) -> float:
        most = min(MOST_S, INTERVAL_S * 2.0 ** min(line.failures, 10))
        return most * (1 + JITTER * self._rng.uniform(-1, 1))

    def _message(self) -> GossipMessage:
        now_wall = self._now_wall()
        sent, room = [], api.MAX_GOSSIP_BODY_BYTES - HEAD_BYTES
        for text in self._texts(now_wall):
            room -= _size(text)
            if room > 0:
                sent.append(text)
        return GossipMessage(sender=self._demand.tracker_id, sent_at=now_wall, slices=tuple(sent))

    def _texts(self, now_wall: float) -> list[str]:
        """Our own slice first, then the peers' as they came."""
        own, *others = self._demand.slices_to_send(now_wall)
        mine = [sign_slice(self._key, own)] if self._key is not None else []
        return [*mine, *(slice_.signed for slice_ in others)]

    def _merge(self, message: GossipMessage, via: str) -> str:
        """What an operator should know of it, or "". ``via`` is whom we dialled or the key that he showed: not the
        sender's own word."""
        now_wall = self._now_wall()
        slices = [open_slice(text) for text in message.slices]  # All are read before any is taken.
        outcomes = {self._demand.merge_slice(slice_, now_wall, via) for slice_ in slices}
        if "twin" in outcomes:
            log.warning("another tracker runs under our id tracker_id=%s", self._demand.tracker_id)
            return "another tracker counts under our id: one of the two runs with a copied key"
        skew_s = message.sent_at - now_wall
        if abs(skew_s) > SKEW_S:
            return f"its clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} ours"
        return "too many peers: some are not added up" if "full" in outcomes else ""


def _size(text: str) -> int:
    """Bytes in the message's JSON, with the comma."""
    return len(msgspec.json.encode(text)) + 1
