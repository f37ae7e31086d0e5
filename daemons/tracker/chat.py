"""One chat from the parsed request to its last token: demand, plan, attempt, and another attempt when a node breaks.

Knows routes, heads and the call's tokens; neither HTTP nor SSE (respond.py has those).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random
from typing import Any, Literal

from daemons.kit.tasks import Tasks
from daemons.tracker.attempts import Attempts, Ended
from daemons.tracker.avoided import Avoided, is_said_gone
from daemons.tracker.calls import Call, CallWall, Try
from daemons.tracker.events import EventLog
from daemons.tracker.fleet import Change, Fleet, LeaseId
from daemons.tracker.metrics import Metrics
from daemons.tracker.planner import Plan, Planner
from daemons.tracker.retries import RetryBudget, Turn
from daemons.tracker.settings import Deadlines
from daemons.tracker.verdicts import failure, lease_of, outcome_of, param_of, without_route
from meshnet.domain.errors import (
    DeadlineExceeded,
    InvalidRequest,
    MeshnetError,
    NoRoute,
    NotFound,
    Overloaded,
)
from meshnet.domain.ids import CallId
from meshnet.domain.routes import Route
from meshnet.wire.messages import Finished, Generate, HopMessage
from meshnet.wire.openai import ChatRequest

log = logging.getLogger(__name__)

MAX_REROUTES = 3
"""Further attempts after the first. Each replays the prompt: a mesh this sick is better told to the client."""
MAX_ATTEMPTS = 16
"""Of one call, refusals and all: beyond it something goes round in a circle."""
STOPPING = "This tracker is stopping; ask again in a moment."
LOOK_AGAIN_S = 0.5
"""A full node has room again, or one found gone is heard of, without any route changing: look that often."""


class ChatService:
    """Runs calls. ``on_demand(model_key, call_id)`` hears of every request, for unknown models too, served or not."""

    def __init__(
        self,
        fleet: Fleet,
        planner: Planner,
        attempts: Attempts,
        wall: CallWall,
        events: EventLog,
        metrics: Metrics,
        deadlines: Deadlines,
        rng: Random,
        now: Callable[[], float],
        now_wall: Callable[[], float],
        on_demand: Callable[[str, CallId], None] = lambda model_key, call_id: None,
        ticket_of: Callable[[CallId, int, Route, float], str] | None = None,
    ) -> None:
        self._fleet = fleet
        self._planner = planner
        self._attempts = attempts
        self.wall = wall
        self._events = events
        self._metrics = metrics
        self.deadlines = deadlines
        self._rng = rng
        self.now = now
        self._now_wall = now_wall
        self._on_demand = on_demand
        self._ticket_of = ticket_of
        self._retries = RetryBudget(lambda: len(wall.running))
        self._tasks = Tasks("calls")
        self._looks = Tasks("looks")
        self._topology = asyncio.Event()
        self._ended = asyncio.Event()
        """Set with each call's end, for those who wait until none runs."""
        self._stopping = False
        fleet.listen(self._on_change)

    @contextlib.asynccontextmanager
    async def call(self, request: ChatRequest) -> AsyncIterator[Call]:
        """A running call; read its ``outbox`` until the end. Leaving the block early cancels it on every node.
        Raises what makes the request impossible at once: NotFound for the model, Overloaded while stopping."""
        call = self._open(request)
        task = self._tasks.start(self._run(call), call.call_id)
        task.add_done_callback(lambda done: self._ended.set())
        try:
            yield call
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=1.0)

    def _open(self, request: ChatRequest) -> Call:
        if self._stopping:
            raise Overloaded(STOPPING, code="shutting_down", retry_after_s=5.0)
        call_id = CallId(f"call-{secrets.token_hex(12)}")
        self._on_demand(request.model, call_id)
        if not self._fleet.knows(request.model):
            raise _no_such_model(request.model, self._fleet)
        if not request.seed_given:
            sampling = replace(request.generation.sampling, seed=self._rng.getrandbits(63))
            request = replace(request, generation=replace(request.generation, sampling=sampling))
        call = Call(self.wall.next_seq(), call_id, request, secrets.randbits(63), self._now_wall(), self.now())
        self.wall.opened(call)
        self._tell(call, "call.accepted")
        return call

    async def _run(self, call: Call) -> None:
        try:
            call.finished = await self._generate(call)
            self._end(call, "ok", None)
        except MeshnetError as error:
            self._end(call, "cancelled" if error.code == "slow_client" else "failed", error)
        except asyncio.CancelledError:
            stopping = Overloaded(STOPPING, code="shutting_down", retry_after_s=5.0) if self._stopping else None
            self._end(call, "failed" if stopping else "cancelled", stopping)
            raise
        finally:
            if call.outcome == "running":  # a fault of ours; the task's owner logs it
                self._end(call, "failed", MeshnetError("The tracker failed on this call.", code="internal_error"))

    async def _generate(self, call: Call) -> Finished:
        """Attempts until one finishes. Raises the error that the client is to see."""
        avoided = Avoided()
        broken: Ended | None = None
        since = self.now()
        while True:
            plan, turn = await self._plan(call, avoided, broken, since)
            try:
                ended = await self._attempt(call, plan, turn)
            finally:
                if turn is not None:
                    turn.release()
            if ended.finished is not None:
                return ended.finished
            culprit = lease_of(plan, ended.culprit)
            avoided.add(culprit, ended)
            if is_said_gone(ended):
                self._planner.found_gone(*culprit)  # Until it is looked for, which takes milliseconds where it lives.
                self._looks.start(self._look_for(culprit, call.tries[-1], avoided), f"look for {culprit[0]}")
            self._give_up(call, ended)
            broken = ended
            since = since if ended.kind == "refused" else self.now()
            self._tell(
                call,
                "call.rerouted",
                ended.message,
                problem=True,
                node_id=ended.culprit or "",
                data={"code": ended.code, "attempt": len(call.tries), "tokens": len(call.produced)},
            )

    async def _plan(self, call: Call, avoided: Avoided, broken: Ended | None, since: float) -> tuple[Plan, Turn | None]:
        """A plan, waiting for a node to appear when layers are held by none: a mesh that restarts has its nodes back
        in seconds. A call that broke needs a turn of the retry budget as well; one that has said something already
        waits for room too, where others are told to come back later. ``since`` it came, or broke last."""
        request = call.request
        waits = broken is None or broken.kind == "failed" or bool(call.produced)
        give_up_at = since + (self.deadlines.spare_wait_s if waits else 0.0)
        while True:
            turn = await self._turn(call) if broken is not None else None
            topology = self._topology
            try:
                plan = self._planner.plan(request.model, pin=request.pin, policy=request.route_policy, avoid=avoided)
                return plan, turn
            except MeshnetError as error:
                if turn is not None:
                    turn.release()
                left_s = give_up_at - self.now()
                if not isinstance(error, NoRoute):
                    raise
                if left_s <= 0:
                    raise without_route(error, broken) from None
            if avoided.take_back():
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(topology.wait(), min(left_s, LOOK_AGAIN_S))
            avoided.forgive()

    async def _look_for(self, lease: LeaseId, attempt: Try, avoided: Avoided) -> None:
        """Is this node gone, as the tracker saw or a head said, or was it blamed for what broke at the other end?"""
        node_id, epoch = lease
        known, head = self._fleet.get(node_id), attempt.plan.decision.route.head.node_id
        if known is None or known.node.epoch != epoch:
            return
        broke_stream = attempt.first_at is not None
        try:
            await self._attempts.dial(node_id, known.node.url)
        except MeshnetError as error:
            log.info("node is gone node=%s reason=%s", node_id, error.message)
            if node_id != head:
                self._planner.blame(node_id, self.now(), broke_stream=broke_stream)
            return
        self._planner.found_here(node_id)
        if node_id != head:
            # It is here. Which end broke nobody knows, and a head that blames others too often is out by itself.
            for either in (node_id, head):
                self._planner.blame(either, self.now(), broke_stream=False)
        avoided.answered(lease)
        self._wake()

    async def _turn(self, call: Call) -> Turn:
        """Raises DeadlineExceeded when the call's own end comes first."""
        try:
            async with asyncio.timeout(self._left_s(call)):
                return await self._retries.turn()
        except TimeoutError:
            raise DeadlineExceeded(
                f"No whole answer within {self.deadlines.call_s:g} s: too many calls begin anew at once."
            ) from None

    async def _attempt(self, call: Call, plan: Plan, turn: Turn | None) -> Ended:
        decision = plan.decision
        attempt = Try(len(call.tries) + 1, plan, self.now())
        call.tries.append(attempt)
        data = {"mode": decision.mode, "signature": decision.signature, "attempt": attempt.number}
        self._metrics.decided(plan)
        self._tell(call, "call.routed", decision.why, data=data)
        with self._planner.reserve(plan):
            try:
                attempt.ended = ended = await self._attempts.run(
                    decision.route.head,
                    self._generate_message(call, attempt),
                    self._first_token_s(call, plan),
                    lambda delta: self._on_delta(call, delta, turn),
                )
            finally:
                attempt.cancelled = attempt.ended is None
                attempt.ended_at = self.now()
                self._planner.observe(outcome_of(call, attempt), plan)
        log.info(
            "attempt ended call=%s attempt=%d kind=%s code=%s culprit=%s tokens=%d",
            call.call_id,
            attempt.number,
            ended.kind,
            ended.code or "-",
            ended.culprit or "-",
            attempt.tokens,
        )
        return ended

    def _on_delta(self, call: Call, delta: Any, turn: Turn | None) -> bool:
        if turn is not None:
            turn.release()  # The replay is over; from here on this call costs what any other does.
        first = call.first_at is None
        taken = call.add(delta, self.now())
        if first and call.first_at is not None:
            ttft_s = call.first_at - call.arrived_at
            self._metrics.first_token(ttft_s)
            data = {"ttft_s": round(ttft_s, 6), "prompt_tokens": len(call.prompt_ids or ())}
            self._tell(call, "call.first_token", data=data)
        return taken

    def _generate_message(self, call: Call, attempt: Try) -> Generate:
        route, left_s = attempt.plan.decision.route, self._left_s(call)
        return Generate(
            session=call.session,
            attempt=attempt.number,
            call_id=call.call_id,
            model_key=route.model_key,
            revision=route.revision,
            dtype=route.dtype,  # type: ignore[arg-type]  # registration let no other in
            hops=tuple(HopMessage(h.node_id, h.url, h.start_layer, h.end_layer, h.epoch) for h in route.hops),
            request=call.request.generation,
            deadline_s=left_s,
            stall_s=self.deadlines.between_tokens_s,
            prompt_ids=call.prompt_ids,
            produced_ids=tuple(call.produced),
            chars_sent=call.chars_sent,
            ticket=self._ticket_of(call.call_id, attempt.number, route, left_s) if self._ticket_of else "",
        )

    def _left_s(self, call: Call) -> float:
        return max(0.001, call.arrived_at + self.deadlines.call_s - self.now())

    def _first_token_s(self, call: Call, plan: Plan) -> float:
        """Prompt rows go hop by hop, so the route's seconds per prompt token are the sum of its hops'."""
        leases = [self._fleet.get(node_id) for node_id in plan.decision.route.node_ids]
        speeds = [lease.prefill_tps if lease is not None else 0.0 for lease in leases]
        whole = 1.0 / sum(1.0 / speed for speed in speeds) if speeds and all(s > 0 for s in speeds) else 0.0
        if call.prompt_ids is not None:
            tokens = float(len(call.prompt_ids) + len(call.produced))
        else:
            characters = sum(len(message.content) for message in call.request.generation.messages)
            tokens = characters / self.deadlines.chars_per_token
        return self.deadlines.first_token(tokens, whole)

    def _give_up(self, call: Call, ended: Ended) -> None:
        """Raises, unless another attempt may help."""
        match ended.kind:
            case "client":
                raise InvalidRequest(ended.message, code=ended.code, param=ended.param or param_of(ended.code))
            case "deadline":
                raise DeadlineExceeded(ended.message)
            case "gone":
                raise Overloaded(ended.message, code=ended.code)
        # Where nothing was said yet, refusals count as well: the client is better told to come back.
        spent = sum(1 for attempt in call.tries if not call.produced or not attempt.is_refused)
        if call.request.pin or spent > MAX_REROUTES or len(call.tries) >= MAX_ATTEMPTS:
            raise failure(ended, "the route is pinned" if call.request.pin else f"{len(call.tries)} routes were tried")

    def _end(self, call: Call, outcome: Literal["ok", "failed", "cancelled"], error: MeshnetError | None) -> None:
        try:
            self._record(call, outcome, error)
        finally:
            call.outbox.close(call.finished or error or Overloaded("The call was cancelled.", code="cancelled"))

    def _record(self, call: Call, outcome: Literal["ok", "failed", "cancelled"], error: MeshnetError | None) -> None:
        call.end(outcome, self.now(), error)
        message = self.wall.closed(call)
        self._metrics.ended(message)
        kind = {"ok": "call.finished", "failed": "call.failed"}.get(outcome, "call.cancelled")
        data = {
            "mode": message.mode,
            "signature": message.signature,
            "prompt_tokens": message.prompt_tokens,
            "completion_tokens": message.completion_tokens,
            "duration_s": message.duration_s,
            "tps": message.tps,
            "attempts": len(message.attempts),
            "code": message.error_code,
        }
        self._tell(call, kind, message.error_message or "", problem=outcome == "failed", data=data)

    def _tell(self, call: Call, kind: str, text: str = "", **fields: Any) -> None:
        self._events.add(kind, call_id=call.call_id, model_key=call.request.model, text=text, **fields)

    def _on_change(self, change: Change) -> None:
        self._wake()

    def _wake(self) -> None:
        # Each waiter waits on its own event: set once, replaced.
        self._topology.set()
        self._topology = asyncio.Event()

    async def drain(self, within_s: float) -> None:
        """New calls are refused from now on; running ones may still end by themselves. Cancelled, it stops waiting."""
        self._stopping = True
        deadline = self.now() + within_s
        while self._tasks and (left_s := deadline - self.now()) > 0:
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), left_s)

    async def stop(self) -> None:
        """New calls are refused, running ones end with an error that says why."""
        self._stopping = True
        await self._tasks.close()
        await self._looks.close()


def _no_such_model(model: str, fleet: Fleet) -> NotFound:
    known = ", ".join(fleet.model_keys()) or "none yet; start a node with: meshnet up"
    return NotFound(f"The model {model!r} does not exist here. Models: {known}.", code="model_not_found", param="model")
