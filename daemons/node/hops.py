"""A node's part in rings: OPEN passed on, rows in, rows or tokens out, and every way a session ends here."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from daemons.kit.link import Link, Links
from daemons.kit.tasks import Tasks
from daemons.node.deadlines import Deadlines
from daemons.node.finite import NOT_FINITE, is_finite
from daemons.node.identity import Identity, retry_elsewhere
from daemons.node.sessions import Session, Sessions
from daemons.node.trust import Trust
from daemons.node.worker import Computed, Worker
from meshnet.domain.engine import Rows, SessionKey, SessionPlan, StepItem
from meshnet.domain.errors import Forbidden, FrameError, MeshnetError, NodeFailed, Overloaded
from meshnet.wire import frames
from meshnet.wire.frames import Hidden, SessionRows
from meshnet.wire.messages import Cancel, Close, Failed, Open, Opened, Probe, Probed, Progress, Token, Tokens

log = logging.getLogger(__name__)

RATE_S = 60.0
"""Over which the observed decode rate is taken."""


class Head(Protocol):
    """What happens on this node as a head: ``driver.Driver``, or a test that listens."""

    def on_token(self, token: Token) -> None: ...
    def on_progress(self, key: SessionKey, position: int) -> None: ...
    def on_failed(self, key: SessionKey, failed: Failed) -> None: ...


class Hops:
    """Sessions of other heads, and the local part of our own. ``head`` is set once, by whoever wires the node."""

    head: Head

    def __init__(
        self,
        identity: Identity,
        links: Links,
        worker: Worker,
        sessions: Sessions,
        tasks: Tasks,
        deadlines: Deadlines,
        now: Callable[[], float],
        trust: Trust,
    ) -> None:
        self._identity = identity
        self._trust = trust
        self._links = links
        self._worker = worker
        self._sessions = sessions
        self._tasks = tasks
        self._deadlines = deadlines
        self._now = now
        self.dropped_rows = 0
        """Rows of sessions that are unknown here or belong to another peer."""
        self._decoded: deque[tuple[float, int]] = deque()
        """(when, decode rows) of the steps of the last minute."""

    # ---- opening

    def on_open(self, link: Link, ask: Open) -> None:
        self._tasks.start(self._open(link, ask), f"open {ask.session:x}.{ask.attempt}")

    async def _open(self, link: Link, ask: Open) -> None:
        key = (ask.session, ask.attempt)
        session = None
        try:
            session = self._new_session(link, ask)
            await self.reserve(session, ask)
            await self._pass_on(session, ask)
        except MeshnetError as error:
            if session is not None and self._sessions.get(key) is session:
                self.drop(key)
            log.info("open refused session=%x.%d code=%s reason=%s", *key, error.code, error.message)
            self._tell_head(ask.hops[0].node_id, ask.hops[0].url, self.failed(key, error))

    def _new_session(self, link: Link, ask: Open) -> Session:
        self._identity.check_part(ask, ask.index)
        if ask.index == 0 or link.peer_id != ask.hops[ask.index - 1].node_id:
            raise Forbidden(f"{link.peer_id} is not the hop before this one.", code="wrong_peer")
        self._trust.admit(ask, ask.hops[ask.index], link.peer, "previous")
        known = len(ask.prompt_ids) + len(ask.produced_ids)
        return Session((ask.session, ask.attempt), ask.hops, ask.index, known, ask.reserve_tokens, upstream=link)

    async def reserve(self, session: Session, ask: Open) -> None:
        """Enter the session and reserve its KV. Raises Overloaded, Conflict or InvalidRequest."""
        if self._identity.draining:
            raise Overloaded(f"{self._identity.node_id} is about to stop.", code="draining")
        session.used_at = self._now()
        self._sessions.add(session)
        hop = session.hop
        plan = SessionPlan(
            hop.start_layer, hop.end_layer, ask.reserve_tokens, ask.sampling, ask.prompt_ids, ask.produced_ids
        )
        try:
            await self._worker.open(session.key, plan)
        except MeshnetError:
            self._sessions.remove(session.key)
            raise

    async def _pass_on(self, session: Session, ask: Open) -> None:
        to = session.hops[0] if session.is_tail else session.next_hop
        link = await self._links.to(to.node_id, to.url, self._deadlines.connect_s)
        if self._sessions.get(session.key) is not session:
            return  # Cancelled meanwhile.
        session.downstream = link
        if session.is_tail:
            link.post(Opened(*session.key))
        else:
            link.post(next_open(ask))

    # ---- rows

    def on_hidden(self, link: Link, frame: Hidden) -> None:
        """Check each session's rows and hand the good ones to the worker. A bad row fails only its session."""
        holding = self._identity.holding
        now = self._now()
        for part, rows in frame.split():
            session = self._sessions.get(part.key)
            if session is None or session.upstream is None or not _is_same_peer(session.upstream, link):
                self.dropped_rows += part.n_rows
                continue
            session.used_at = now
            try:
                if (frame.rows.dtype, frame.rows.shape[1]) != (holding.dtype, holding.hidden_size):
                    raise FrameError(f"rows of {frame.rows.shape[1]} {frame.rows.dtype}")
                item = session.take(frame, part, rows)
            except FrameError as error:
                self.fail(
                    session, NodeFailed(f"{link.peer_id} sent {error.message}.", node_id=link.peer_id, code="bad_rows")
                )
                continue
            if item is not None:
                self._worker.submit(item)

    def feed(self, session: Session, position: int, token_ids: tuple[int, ...], sample: bool) -> None:
        """The head's own rows: token ids."""
        session.used_at = self._now()
        session.received = position + len(token_ids)
        self._worker.submit(StepItem(session.key, position, token_ids=token_ids, sample=sample))

    def on_results(self, computed: Sequence[Computed]) -> None:
        """Rows and tokens of one step, grouped so that what goes to the same hop travels as one message."""
        rows: dict[tuple[Link, int, int, bool], list[tuple[SessionRows, Rows]]] = defaultdict(list)
        tokens: dict[Link, list[Token]] = defaultdict(list)
        now = self._now()
        for part in computed:
            session = self._sessions.get(part.item.key)
            if session is None:
                continue
            session.used_at = now
            if part.result.error is not None:
                self.fail(session, _traced(session, part.item, part.result.error))
            elif part.result.rows is not None and session.downstream is not None:
                is_prefill = part.item.position < session.known_tokens
                to = session.next_hop
                lane = (session.downstream, to.start_layer, to.end_layer, is_prefill)
                rows[lane].append((self._row_of(session, part), part.result.rows))
            else:
                self._answer_head(session, part, tokens)
        self._count_decoded(now, computed)
        for (link, start, end, bulk), parts in rows.items():
            for message in frames.cut(start, end, parts):
                self._post(link, message, bulk=bulk)
        for link, items in tokens.items():
            self._post(link, Tokens(tuple(items)))

    def _count_decoded(self, now: float, computed: Sequence[Computed]) -> None:
        self._decoded.append((now, sum(1 for part in computed if part.item.sample)))
        while self._decoded[0][0] < now - RATE_S:
            self._decoded.popleft()

    def decode_rate(self) -> float:
        """Tokens/s that passed here over the last RATE_S; 0 when idle."""
        since = self._now() - RATE_S
        return sum(rows for at, rows in self._decoded if at >= since) / RATE_S

    def _row_of(self, session: Session, part: Computed) -> SessionRows:
        item = part.item
        step, session.step_out = session.step_out, session.step_out + 1
        session.sent = item.position + item.n_rows
        hop_us = (*session.hop_us, (part.queued_us, part.computing_us))
        return SessionRows(item.key, item.position, step, item.n_rows, item.sample, False, hop_us)

    def _answer_head(self, session: Session, part: Computed, tokens: dict[Link, list[Token]]) -> None:
        position = part.item.position + part.item.n_rows
        session.sent = position
        sampled = part.result.token
        if sampled is None:
            if session.downstream is None:
                self.head.on_progress(session.key, position)
            else:
                self._post(session.downstream, Progress(*session.key, position))
            return
        token = Token(
            session=session.key[0],
            attempt=session.key[1],
            position=position,
            token_id=sampled.token_id,
            logprob=sampled.logprob,
            top_logprobs=sampled.top_logprobs,
            hop_us=(*session.hop_us, (part.queued_us, part.computing_us)),
        )
        if session.downstream is None:
            self.head.on_token(token)
        else:
            tokens[session.downstream].append(token)

    # ---- the head's questions and orders

    def on_probe(self, link: Link, ask: Probe) -> None:
        self._post(link, self.probed((ask.session, ask.attempt), link.peer_id))

    def probed(self, key: SessionKey, asker: str) -> Probed:
        """Where this session is here; only its head is told."""
        session = self._sessions.get(key)
        if session is None or session.head_id != asker:
            return Probed(session=key[0], attempt=key[1], known=False)
        session.used_at = self._now()
        computing = key in self._worker.computing
        return Probed(
            session=key[0],
            attempt=key[1],
            known=True,
            received=session.received,
            sent=session.sent,
            queued=self._worker.waits(key) and not computing,
            computing=computing,
        )

    def on_end(self, link: Link, order: Close | Cancel) -> None:
        """The head says that the session is over."""
        key = (order.session, order.attempt)
        session = self._sessions.get(key)
        if session is None:
            self._sessions.remember_cancelled(key, link.peer_id)
        elif session.index > 0 and link.peer_id == session.head_id:
            self.drop(key)

    # ---- ends

    def on_link_closed(self, link: Link) -> None:
        error = NodeFailed(f"The link to {link.peer_id} closed.", node_id=link.peer_id, code="link_closed")
        for session in self._sessions.on_link(link):
            self.fail(session, error)

    def drop_idle(self) -> None:
        """The last net: sessions without frames or probes for ``idle_session_s``."""
        oldest = self._now() - self._deadlines.idle_session_s
        for session in self._sessions:
            if session.used_at < oldest and not self._worker.waits(session.key):
                self.fail(session, NodeFailed("The session was idle for too long.", code="idle"))

    def fail(self, session: Session, error: MeshnetError) -> None:
        """End a session here and tell its head why."""
        self.drop(session.key)
        failed = self.failed(session.key, error)
        if session.index == 0:
            self.head.on_failed(session.key, failed)
        else:
            self._tell_head(session.head_id, session.hops[0].url, failed)

    def drop(self, key: SessionKey) -> None:
        """Forget a session and free its KV."""
        if self._sessions.remove(key) is not None:
            self._worker.close(key)

    def failed(self, key: SessionKey, error: MeshnetError) -> Failed:
        """The frame that names the culprit: the node the error names, else this one, unless the client is at fault."""
        culprit = getattr(error, "node_id", None) or (self._identity.node_id if retry_elsewhere(error) else None)
        return Failed(
            session=key[0],
            attempt=key[1],
            code=error.code,
            message=error.message[:4096],
            culprit=culprit,
            param=error.param,
        )

    def _tell_head(self, head_id: str, url: str, failed: Failed) -> None:
        link = self._links.get(head_id)
        if link is not None:
            self._post(link, failed)
        else:
            self._tasks.start(self._tell_far_head(head_id, url, failed), f"tell {head_id}")

    async def _tell_far_head(self, head_id: str, url: str, failed: Failed) -> None:
        try:
            link = await self._links.to(head_id, url, self._deadlines.connect_s)
            link.post(failed)
        except MeshnetError as error:
            log.info("head not told node=%s reason=%s", head_id, error.message)

    def _post(self, link: Link, message: bytes | Failed | Tokens | Progress | Probed, *, bulk: bool = False) -> None:
        try:
            link.post(message, bulk=bulk)
        except NodeFailed:
            log.debug("not sent peer=%s", link.peer_id)  # The link's end is told to everyone by on_link_closed.


def next_open(ask: Open) -> Open:
    """The same OPEN for the next hop."""
    return Open(
        session=ask.session,
        attempt=ask.attempt,
        call_id=ask.call_id,
        model_key=ask.model_key,
        revision=ask.revision,
        dtype=ask.dtype,
        hops=ask.hops,
        index=ask.index + 1,
        reserve_tokens=ask.reserve_tokens,
        sampling=ask.sampling,
        prompt_ids=ask.prompt_ids,
        produced_ids=ask.produced_ids,
        ticket=ask.ticket,
    )


def _traced(session: Session, item: StepItem, error: MeshnetError) -> MeshnetError:
    """Nonsense that came out of nonsense is the fault of whoever sent it."""
    if error.code != NOT_FINITE or item.rows is None or session.upstream is None or is_finite(item.rows):
        return error
    sender = session.upstream.peer_id
    return NodeFailed(f"{sender} sent rows that are not finite numbers.", node_id=sender, code=NOT_FINITE)


def _is_same_peer(owner: Link, link: Link) -> bool:
    return owner is link or (owner.peer_id == link.peer_id and owner.peer.boot == link.peer.boot)
