"""The head: answers GENERATE by driving a ring, token by token, and tells the tracker how it goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from daemons.kit.link import Link, Links
from daemons.kit.tasks import Tasks
from daemons.node.culprit import Blame, blame
from daemons.node.deadlines import Deadlines
from daemons.node.generation import Generation
from daemons.node.hops import Hops, next_open
from daemons.node.identity import Identity
from daemons.node.sessions import Session
from daemons.node.trust import Trust
from meshnet.domain.engine import SessionKey, TextCodec
from meshnet.domain.errors import Conflict, Forbidden, InvalidRequest, MeshnetError, NodeFailed, Overloaded
from meshnet.wire.messages import (
    Cancel,
    Close,
    Delta,
    Failed,
    Finished,
    Generate,
    Opened,
    Probe,
    Probed,
    Progress,
    Token,
    Tokens,
)

log = logging.getLogger(__name__)


class Driver:
    """All answers of which this node is the head. ``codec`` is set once the shard is loaded."""

    codec: TextCodec | None = None

    def __init__(
        self,
        identity: Identity,
        links: Links,
        hops: Hops,
        tasks: Tasks,
        deadlines: Deadlines,
        encoder: Executor,
        now: Callable[[], float],
        trust: Trust,
    ) -> None:
        self._identity = identity
        self._trust = trust
        self._links = links
        self._hops = hops
        self._tasks = tasks
        self._deadlines = deadlines
        self._encoder = encoder
        self._now = now
        self._running: dict[SessionKey, Generation] = {}

    def __len__(self) -> int:
        return len(self._running)

    # ---- the tracker's orders

    def on_generate(self, link: Link, ask: Generate) -> None:
        generation = Generation(ask, link, self._now())
        try:
            self._check(link, ask)
        except MeshnetError as error:
            self._tell(link, self._hops.failed(generation.key, error))
            return
        self._running[generation.key] = generation
        generation.task = self._tasks.start(self._run(generation), f"generate {ask.call_id}.{ask.attempt}")

    def _check(self, link: Link, ask: Generate) -> None:
        if link.peer.role != "tracker":
            raise Forbidden("Only a tracker starts an answer.", code="wrong_peer")
        if self._identity.draining:
            raise Overloaded(f"{self._identity.node_id} is about to stop.", code="draining")
        self._trust.admit(ask, self._identity.check_part(ask, 0), link.peer, "tracker")
        if (ask.session, ask.attempt) in self._running:
            raise Conflict(f"attempt {ask.attempt} of {ask.call_id} is already running here.")

    def on_cancel(self, link: Link, order: Cancel) -> None:
        generation = self._running.get((order.session, order.attempt))
        if generation is not None and generation.tracker is link:
            self._end(generation, None, order.reason or "cancelled")

    def on_probe(self, link: Link, ask: Probe) -> None:
        """The tracker asks whether the head still has its answer in hand; where in the ring it is stuck, and whose
        fault that is, the head finds out by itself."""
        generation = self._running.get((ask.session, ask.attempt))
        known = generation is not None and generation.tracker is link
        self._tell(link, Probed(session=ask.session, attempt=ask.attempt, known=known, computing=known))

    # ---- one answer

    async def _run(self, generation: Generation) -> None:
        try:
            async with asyncio.timeout(generation.ask.deadline_s):
                await self._prepare(generation)
                if generation.finish_reason() is not None:
                    self._finish_replayed(generation)
                    return
                await self._open_ring(generation)
                generation.moved_at = self._now()
                self._pump(generation)
                await self._watch(generation)
        except TimeoutError:
            error = NodeFailed(f"No answer within {generation.ask.deadline_s:g} s.", code="deadline_exceeded")
            self._end(generation, self._hops.failed(generation.key, error), "deadline")
        except MeshnetError as error:
            self._end(generation, self._hops.failed(generation.key, error), error.code)
        finally:
            if not generation.ended:  # Stopped from outside, or a fault of ours: the tracker must not wait for us.
                error = NodeFailed("The head gave this answer up.", code="internal_error")
                self._end(generation, self._hops.failed(generation.key, error), error.code)

    async def _prepare(self, generation: Generation) -> None:
        codec = self.codec
        if codec is None:
            raise NodeFailed(f"{self._identity.node_id} has no tokenizer loaded.", code="loading")
        ask = generation.ask
        if ask.prompt_ids is not None:
            prompt_ids = ask.prompt_ids
        else:
            loop = asyncio.get_running_loop()
            prompt_ids = tuple(await loop.run_in_executor(self._encoder, codec.encode_chat, ask.request.messages))
        if not prompt_ids:
            raise InvalidRequest("The prompt has no tokens.", param="messages")
        generation.begin(prompt_ids, codec, self._identity.holding.context_length)

    def _finish_replayed(self, generation: Generation) -> None:
        """The tokens of earlier attempts were already the whole answer; only its end was lost."""
        assert generation.stream is not None
        text = generation.stream.flush()
        delta = Delta(
            session=generation.ask.session,
            attempt=generation.ask.attempt,
            text=text,
            prompt_token_ids=generation.unsent_prompt(),
        )
        self._tell(generation.tracker, delta)
        self._end(generation, generation.finished(), "complete")

    async def _open_ring(self, generation: Generation) -> None:
        """Reserve here, link to every hop (cancel and probe go straight to each), send OPEN round, wait for its end."""
        ask = generation.open_frame()
        session = Session(generation.key, ask.hops, 0, len(generation.known_ids), ask.reserve_tokens)
        await self._hops.reserve(session, ask)
        generation.session = session
        others = ask.hops[1:]
        if not others:
            return
        dials = (self._links.to(hop.node_id, hop.url, self._deadlines.connect_s) for hop in others)
        links = await asyncio.gather(*dials)
        generation.hop_links = dict(zip((hop.node_id for hop in others), links, strict=True))
        session.downstream = links[0]
        links[0].post(next_open(ask))
        try:
            async with asyncio.timeout(self._deadlines.open_s):
                await generation.opened.wait()
        except TimeoutError:
            await self._blame_for_open(generation)

    async def _blame_for_open(self, generation: Generation) -> None:
        answers = await self._probe(generation)
        for hop, answer in zip(generation.ask.hops, answers, strict=True):
            if answer is None or not answer.known:
                raise NodeFailed(f"{hop.node_id} did not open the session.", node_id=hop.node_id, code="silent")
        tail = generation.ask.hops[-1].node_id
        raise NodeFailed(f"{tail} did not open the session.", node_id=tail, code="silent")

    def _pump(self, generation: Generation) -> None:
        """Let as much of the prefill into the ring as its window allows."""
        session = generation.session
        assert session is not None
        while (chunk := generation.next_chunk()) is not None:
            self._hops.feed(session, *chunk)

    # ---- what comes round

    def on_opened(self, link: Link, frame: Opened) -> None:
        generation = self._running.get((frame.session, frame.attempt))
        if generation is None:
            self._tell(link, Cancel(frame.session, frame.attempt, "no such answer here"))
        elif link.peer_id == generation.ask.hops[-1].node_id:
            generation.opened.set()

    def on_tokens(self, link: Link, frame: Tokens) -> None:
        for token in frame.items:
            generation = self._running.get((token.session, token.attempt))
            if generation is not None and link.peer_id == generation.ask.hops[-1].node_id:
                self._take(generation, token)

    def on_token(self, token: Token) -> None:
        """A token of the local tail: the route has one node."""
        generation = self._running.get((token.session, token.attempt))
        if generation is not None:
            self._take(generation, token)

    def _take(self, generation: Generation, token: Token) -> None:
        codec, session = self.codec, generation.session
        assert codec is not None and session is not None
        delta = generation.take(token, codec, self._now())
        if delta is None:
            return
        over = generation.finish_reason() is not None
        if not over:
            generation.fed = token.position + 1
            self._hops.feed(session, token.position, (token.token_id,), True)
        self._tell(generation.tracker, delta)
        if over:
            self._end(generation, generation.finished(), "complete")

    def on_progress_frame(self, link: Link, frame: Progress) -> None:
        generation = self._running.get((frame.session, frame.attempt))
        if generation is not None and link.peer_id == generation.ask.hops[-1].node_id:
            self._advance(generation, frame.position)

    def on_progress(self, key: SessionKey, position: int) -> None:
        generation = self._running.get(key)
        if generation is not None:
            self._advance(generation, position)

    def _advance(self, generation: Generation, position: int) -> None:
        if generation.round_trip < position <= generation.fed:
            generation.round_trip, generation.moved_at = position, self._now()
            self._pump(generation)

    # ---- silence and failure

    async def _watch(self, generation: Generation) -> None:
        """Sleep until the session is silent for too long; then ask its hops whose fault that is. Ends by cancellation
        or with NodeFailed."""
        while True:
            floor = generation.ask.stall_s or self._deadlines.stall_s
            limit = max(floor, self._deadlines.stall_steps * max(generation.gaps_s, default=0.0))
            left = generation.moved_at + limit - self._now()
            if left > 0:
                await asyncio.sleep(left)
                continue
            moved_at = generation.moved_at
            found = await self._blame(generation)
            if generation.moved_at != moved_at:
                continue
            if found is not None:
                raise NodeFailed(found.why, node_id=found.culprit, code=found.code)
            generation.moved_at = self._now()

    async def _blame(self, generation: Generation) -> Blame | None:
        """Answers come at different moments, and rows in the air belong to nobody: what could be such rows is blamed
        only when a second look shows the same."""
        answers = await self._probe(generation)
        found = blame(generation.ask.hops, answers, generation.fed)
        if found is None or not found.may_be_in_flight:
            return found
        await asyncio.sleep(self._deadlines.probe_s)
        return found if await self._probe(generation) == answers else None

    async def _probe(self, generation: Generation) -> list[Probed | None]:
        """Every hop's answer, in ring order, within ``probe_s``."""
        generation.answers = {self._identity.node_id: self._hops.probed(generation.key, self._identity.node_id)}
        for link in generation.hop_links.values():
            self._tell(link, Probe(*generation.key, step=generation.fed))
        try:
            async with asyncio.timeout(self._deadlines.probe_s):
                while len(generation.answers) < len(generation.ask.hops):
                    generation.answered.clear()
                    await generation.answered.wait()
        except TimeoutError:
            pass
        return [generation.answers.get(hop.node_id) for hop in generation.ask.hops]

    def on_probed(self, link: Link, frame: Probed) -> None:
        generation = self._running.get((frame.session, frame.attempt))
        if generation is not None and link.peer_id in generation.hop_links:
            generation.answers[link.peer_id] = frame
            generation.answered.set()

    def on_failed_frame(self, link: Link, frame: Failed) -> None:
        """A hop ended the session. It may name another node of the route, nobody else."""
        generation = self._running.get((frame.session, frame.attempt))
        hops = () if generation is None else tuple(hop.node_id for hop in generation.ask.hops)
        if generation is None or link.peer_id not in hops:
            return
        culprit = frame.culprit if frame.culprit is None or frame.culprit in hops else link.peer_id
        self.on_failed(
            generation.key,
            Failed(
                session=frame.session,
                attempt=frame.attempt,
                code=frame.code,
                message=frame.message,
                culprit=culprit,
                param=frame.param,
            ),
        )

    def on_failed(self, key: SessionKey, failed: Failed) -> None:
        generation = self._running.get(key)
        if generation is not None:
            self._end(generation, failed, failed.code)

    def on_link_closed(self, link: Link) -> None:
        """The tracker's link: nobody wants the answer any more. A hop's: it is the culprit, known at once."""
        for generation in list(self._running.values()):
            if generation.tracker is link:
                self._end(generation, None, "tracker gone")
            elif generation.hop_links.get(link.peer_id) is link:
                error = NodeFailed(f"The link to {link.peer_id} closed.", node_id=link.peer_id, code="link_closed")
                self._end(generation, self._hops.failed(generation.key, error), error.code)

    def stop_all(self, code: str) -> None:
        """Give every answer up: this node stops."""
        for generation in list(self._running.values()):
            error = NodeFailed(f"{self._identity.node_id} stops.", node_id=self._identity.node_id, code=code)
            self._end(generation, self._hops.failed(generation.key, error), code)

    def _end(self, generation: Generation, last: Finished | Failed | None, why: str) -> None:
        """The one way out of every answer: free every hop, tell the tracker, stop the task. Never waits."""
        if generation.ended:
            return
        generation.ended = True
        self._running.pop(generation.key, None)
        order = Close(*generation.key) if isinstance(last, Finished) else Cancel(*generation.key, reason=why[:256])
        for link in generation.hop_links.values():
            self._tell(link, order)
        self._hops.drop(generation.key)
        if last is not None:
            self._tell(generation.tracker, last)
        if isinstance(last, Failed):
            log.info("answer failed call=%s code=%s culprit=%s", generation.ask.call_id, last.code, last.culprit)
        if generation.task is not None and generation.task is not asyncio.current_task():
            generation.task.cancel()

    def _tell(self, link: Link, message: Delta | Finished | Failed | Cancel | Close | Probe | Probed) -> None:
        try:
            link.post(message)
        except NodeFailed:
            log.debug("not sent peer=%s", link.peer_id)  # on_link_closed ends whatever needed it.
