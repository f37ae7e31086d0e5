"""One try of a call on one route: GENERATE to the head, its deltas back, and how it ended as a value.

Nothing here plans or retries. Expected failures of nodes and lines come back as ``Ended``, never as exceptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import aiohttp
import msgspec

from daemons.kit.link import Link, Links
from daemons.kit.proof import Prover
from daemons.tracker.settings import Deadlines
from meshnet.domain.engine import SessionKey
from meshnet.domain.errors import EpochChanged, FrameError, NodeFailed
from meshnet.domain.ids import NodeId
from meshnet.domain.routes import Hop
from meshnet.wire import frames
from meshnet.wire.messages import Cancel, Delta, Failed, Finished, Generate, Hello, Probe, Probed

log = logging.getLogger(__name__)

EndKind = Literal["finished", "client", "refused", "failed", "gone", "deadline"]

REFUSALS = frozenset({"overloaded", "kv_full", "node_oom", "epoch_changed", "draining", "shutting_down", "loading"})
"""Codes by which a sound node says no: plan again without it, but hold nothing against it."""
MAX_TOKENS = 1 << 20
"""Of an answer whose client set no bound; as many as a GENERATE carries."""
MAX_CHARS = 1_000_000
"""Of an answer: as many as a GENERATE that replays it can count. No model's context holds so much text."""
CLIENT_FAULTS = frozenset({"invalid_request", "context_length_exceeded", "chat_template", "body_too_large"})
"""Codes that would come again on any route."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. ``culprit`` is the node to do without, where one is to blame."""

    kind: EndKind
    code: str = ""
    message: str = ""
    culprit: NodeId | None = None
    param: str | None = None
    finished: Finished | None = None


class Session:
    """One attempt's side of a link: fed by the link's reader, watched by ``Attempts.run``."""

    def __init__(self, generate: Generate, link: Link, on_delta: Callable[[Delta], bool], now: Callable[[], float]):
        self.key: SessionKey = (generate.session, generate.attempt)
        self.link = link
        self.head = NodeId(generate.hops[0].node_id)
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.heard_at = self.started_at = now()
        self.first_at: float | None = None
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first delta: from then on another deadline holds."""
        self.slowest_step_s = 0.0
        self._produced = len(generate.produced_ids)
        self._chars = generate.chars_sent
        self._max_tokens = generate.request.max_tokens or MAX_TOKENS
        self._route = frozenset(hop.node_id for hop in generate.hops)
        self.probed: asyncio.Future[Probed] | None = None
        self._on_delta = on_delta
        self._now = now

    def deliver(self, message: msgspec.Struct) -> None:
        if self.ended.done():
            return
        match message:
            case Delta():
                self._deliver_delta(message)
            case Finished() if message.completion_tokens != self._produced:
                self._refuse(f"says that it sent {message.completion_tokens} tokens, not {self._produced}")
            case Finished():
                self.end(Ended("finished", finished=message))
            case Failed():
                self.end(_ended_by(message, self.head, self._route))
            case Probed() if self.probed is not None and not self.probed.done():
                self.probed.set_result(message)

    def _deliver_delta(self, delta: Delta) -> None:
        now = self._now()
        self._produced += len(delta.token_ids)
        self._chars += len(delta.text)
        if self._produced > self._max_tokens or self._chars > MAX_CHARS:
            self._refuse(f"sends more than was asked for: {self._produced} tokens, {self._chars} characters")
            return
        if self.first_at is None:
            self.first_at = now
            self.began.set_result(None)
        elif delta.token_ids:
            self.slowest_step_s = max(self.slowest_step_s, (now - self.heard_at) / len(delta.token_ids))
        self.heard_at = now
        if not self._on_delta(delta):
            self.end(Ended("gone", "slow_client", "The client reads too slowly."))

    def _refuse(self, what: str) -> None:
        """What this head says cannot be; what it said before may not be true either, but the client has it."""
        self.end(Ended("failed", "bad_answer", f"Head {self.head} {what}.", self.head))

    def end(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


class Attempts:
    """Runs attempts over shared links to heads."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        http: aiohttp.ClientSession,
        deadlines: Deadlines,
        now: Callable[[], float],
        prover: Prover | None = None,
    ) -> None:
        self._deadlines = deadlines
        self._now = now
        self._sessions: dict[SessionKey, Session] = {}
        self._probes = Links(
            lambda: _as_probe(hello()), lambda link, message: None, lambda link: None, http, now, prover
        )
        self._links = Links(hello, self._on_message, self._on_closed, http, now, prover)

    def __len__(self) -> int:
        """Attempts running now."""
        return len(self._sessions)

    async def dial(self, node_id: NodeId, url: str) -> None:
        """Whether this node answers at this url, beside the link that calls use. Raises MeshnetError if not."""
        link = await self._probes.to(node_id, url, self._deadlines.connect_s)
        await link.shut()

    async def run(
        self,
        head: Hop,
        generate: Generate,
        first_token_s: float,
        on_delta: Callable[[Delta], bool],
    ) -> Ended:
        """Send, and wait for the end. ``on_delta`` gets each delta at once and answers False to give up (the client is
        too slow). Cancelled, it tells the head to stop."""
        try:
            link = await self._links.to(head.node_id, head.url, min(self._deadlines.connect_s, generate.deadline_s))
        except NodeFailed as error:
            return Ended("failed", error.code, error.message, head.node_id)
        except EpochChanged as error:
            return Ended("refused", error.code, error.message, head.node_id)
        session = Session(generate, link, on_delta, self._now)
        self._sessions[session.key] = session
        try:
            link.post(generate)
            return await self._watch(session, first_token_s, generate.deadline_s)
        except NodeFailed as error:
            session.end(Ended("failed", error.code, error.message, head.node_id))
            return session.ended.result()
        except FrameError as error:
            session.end(Ended("client", "body_too_large", error.message))
            return session.ended.result()
        finally:
            del self._sessions[session.key]
            self._stop_head(session)

    def _stop_head(self, session: Session) -> None:
        """CANCEL, unless the head itself said that it is over. Never waits: whoever was cancelled here may be
        cancelled again, and the head must hear of it anyway."""
        ended = session.ended.result() if session.ended.done() else None
        by_head = ended is not None and ended.kind in ("finished", "client", "refused")
        if by_head or session.link.closed.is_set():
            return
        try:
            session.link.post(Cancel(*session.key, reason=ended.code if ended is not None else "client gone"))
        except NodeFailed:
            log.debug("cancel not sent peer=%s reason=link_closed", session.head)

    def forget(self, node_id: NodeId, boot: str) -> None:
        """Another process has this node_id now: a link to the old one, half-open perhaps, is of no use."""
        link = self._links.get(node_id)
        if link is not None and link.peer.boot != boot:
            link.cut()

    async def _watch(self, session: Session, first_token_s: float, deadline_s: float) -> Ended:
        deadline_at, extended_until = session.started_at + deadline_s, 0.0
        while True:
            silent_s = first_token_s
            if session.first_at is not None:
                silent_s = self._deadlines.between_tokens(session.slowest_step_s)
            due_at = min(max(session.heard_at + silent_s, extended_until), deadline_at)
            # Deltas do not wake us, but for the first: a step of the ring costs this task nothing.
            news = (session.ended,) if session.began.done() else (session.ended, session.began)
            await asyncio.wait(news, timeout=max(0.0, due_at - self._now()), return_when=asyncio.FIRST_COMPLETED)
            if session.ended.done():
                return session.ended.result()
            now = self._now()
            if now >= deadline_at:
                session.end(Ended("deadline", "deadline_exceeded", f"No whole answer within {deadline_s:.1f} s."))
            elif now >= due_at and session.heard_at + silent_s <= due_at:
                await self._ask_head(session, silent_s)
                extended_until = self._now() + silent_s

    async def _ask_head(self, session: Session, silent_s: float) -> None:
        """The head watches its ring and names culprits; a tracker only needs to know whether the head itself lives."""
        session.probed = asyncio.get_running_loop().create_future()
        session.link.post(Probe(*session.key, step=0))
        await asyncio.wait(
            (session.ended, session.probed), timeout=self._deadlines.probe_s, return_when=asyncio.FIRST_COMPLETED
        )
        if session.ended.done():
            return
        if not session.probed.done():
            why = f"Head {session.head} was silent for {silent_s:.1f} s and does not answer."
            session.end(Ended("failed", "stalled", why, session.head))
        elif not session.probed.result().known:
            session.end(Ended("failed", "session_lost", f"Head {session.head} lost the session.", session.head))

    def _on_message(self, link: Link, message: frames.Hidden | msgspec.Struct) -> None:
        if isinstance(message, Delta | Finished | Failed | Probed):
            session = self._sessions.get((message.session, message.attempt))
            # A late frame of an abandoned attempt finds no session; one from another peer is not its business.
            if session is not None and session.link is link:
                session.deliver(message)

    def _on_closed(self, link: Link) -> None:
        for session in list(self._sessions.values()):
            if session.link is link:
                why = f"The link to head {session.head} broke."
                session.end(Ended("failed", "link_closed", why, session.head))

    async def close(self) -> None:
        await self._probes.close()
        await self._links.close()


def _as_probe(hello: Hello) -> Hello:
    """Under an id of its own: a second link of one peer would replace the first."""
    return msgspec.structs.replace(hello, peer_id=f"{hello.peer_id}.probe")


def _ended_by(failed: Failed, head: NodeId, route: Collection[str]) -> Ended:
    culprit = NodeId(failed.culprit) if failed.culprit in route and failed.culprit else head
    if failed.code in CLIENT_FAULTS or failed.param is not None:
        return Ended("client", failed.code, failed.message, param=failed.param)
    if failed.code == "deadline_exceeded":
        return Ended("deadline", failed.code, failed.message)
    kind: EndKind = "refused" if failed.code in REFUSALS else "failed"
    return Ended(kind, failed.code, failed.message, culprit)
