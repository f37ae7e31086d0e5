"""Calls: the state of each running one, and the wall of the last ones.

A call holds the tokens its attempts produced, so that the next one can go on from them; the wall keeps figures only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from daemons.tracker.attempts import Ended
from daemons.tracker.outbox import Outbox
from daemons.tracker.planner import Plan
from daemons.tracker.routing_views import NameOf, decision_message, route_hops
from meshnet.domain.errors import InvalidRequest, MeshnetError, NotFound
from meshnet.domain.ids import CallId
from meshnet.domain.routing import HopTiming, Mode
from meshnet.wire.messages import Delta, Finished
from meshnet.wire.openai import ChatRequest
from meshnet.wire.routing import AttemptMessage, CallMessage, CallsResponse, RouteHop
from meshnet.wire.routing import Outcome as CallOutcome

MAX_PAGE = 500
"""Calls of one answer: about 1 MB of JSON."""


@dataclass(slots=True)
class Try:
    """One attempt of a call while it runs and after. Stamps are monotonic seconds."""

    number: int
    plan: Plan
    started_at: float
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    ended: Ended | None = None
    cancelled: bool = False
    tokens: int = 0
    timed_tokens: int = 0
    """Decoded tokens whose deltas carried hop timings. The first delta's are the prompt's and are left out."""
    hop_us: list[list[int]] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        return self.ended is not None and self.ended.kind == "refused"

    def add(self, delta: Delta, now: float) -> None:
        is_first = self.first_at is None
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.tokens += len(delta.token_ids)
        if delta.hop_us and not is_first:
            self.timed_tokens += len(delta.token_ids)
            if len(self.hop_us) != len(delta.hop_us):
                self.hop_us = [[0, 0] for _ in delta.hop_us]
            for total, (queued, computing) in zip(self.hop_us, delta.hop_us, strict=True):
                total[0] += queued
                total[1] += computing

    @property
    def hop_timings(self) -> tuple[HopTiming, ...]:
        hops = self.plan.decision.route.hops
        if len(self.hop_us) != len(hops) or not self.timed_tokens:
            return ()
        return tuple(
            HopTiming(hop.node_id, self.timed_tokens, computing / 1e6, queued / 1e6)
            for hop, (queued, computing) in zip(hops, self.hop_us, strict=True)
        )

    def message(self, arrived_at: float, name_of: NameOf) -> AttemptMessage:
        ended = self.ended
        return AttemptMessage(
            attempt=self.number,
            decision=decision_message(self.plan),
            hops=self._hops(name_of),
            started_s=round(self.started_at - arrived_at, 6),
            ended_s=None if self.ended_at is None else round(self.ended_at - arrived_at, 6),
            code="cancelled" if self.cancelled else (ended.code or None) if ended else None,
            message=ended.message if ended else "",
            culprit=ended.culprit if ended else None,
        )

    def _hops(self, name_of: NameOf) -> tuple[RouteHop, ...]:
        """Times are the means of this attempt's decoded tokens."""
        hops = route_hops(self.plan.decision.route.hops, name_of, self.plan.loads)
        if len(self.hop_us) != len(hops) or not self.timed_tokens:
            return hops
        return tuple(
            structs.replace(hop, queued_us=queued / self.timed_tokens, computing_us=computing / self.timed_tokens)
            for hop, (queued, computing) in zip(hops, self.hop_us, strict=True)
        )


@dataclass(slots=True, eq=False)
class Call:
    """One chat request from its arrival to its end. Changed by daemons/tracker/chat.py only."""

    seq: int
    """Of this tracker's calls, rising."""
    call_id: CallId
    request: ChatRequest
    session: int
    created: float
    """Unix seconds."""
    arrived_at: float
    outbox: Outbox = field(default_factory=Outbox)
    prompt_ids: tuple[int, ...] | None = None
    produced: list[int] = field(default_factory=list)
    chars_sent: int = 0
    tries: list[Try] = field(default_factory=list)
    outcome: CallOutcome = "running"
    finished: Finished | None = None
    error: MeshnetError | None = None
    first_at: float | None = None
    ended_at: float | None = None

    @property
    def mode(self) -> Mode | None:
        return self.tries[-1].plan.decision.mode if self.tries else None

    def add(self, delta: Delta, now: float) -> bool:
        """Take a delta of the running attempt. False: the client is too far behind."""
        if delta.prompt_token_ids is not None and self.prompt_ids is None:
            self.prompt_ids = delta.prompt_token_ids
        self.produced.extend(delta.token_ids)
        self.chars_sent += len(delta.text)
        self.first_at = now if self.first_at is None else self.first_at
        self.tries[-1].add(delta, now)
        return self.outbox.put(delta)

    def end(self, outcome: CallOutcome, now: float, error: MeshnetError | None = None) -> None:
        self.outcome, self.error, self.ended_at = outcome, error, now

    def message(self, now: float, name_of: NameOf) -> CallMessage:
        finished, ended_at = self.finished, self.ended_at or now
        last = self.tries[-1].plan.decision if self.tries else None
        return CallMessage(
            seq=self.seq,
            call_id=self.call_id,
            model_key=self.request.model,
            accepted_at=round(self.created, 3),
            outcome=self.outcome,
            mode=self.mode,
            signature=last.signature if last else "",
            attempts=tuple(attempt.message(self.arrived_at, name_of) for attempt in self.tries),
            stream=self.request.stream,
            prompt_tokens=finished.prompt_tokens if finished else len(self.prompt_ids or ()),
            completion_tokens=finished.completion_tokens if finished else len(self.produced),
            ttft_s=None if self.first_at is None else round(self.first_at - self.arrived_at, 6),
            duration_s=round(ended_at - self.arrived_at, 6),
            tps=self._tps(),
            finish_reason=finished.finish_reason if finished else None,
            error_code=self.error.code if self.error else None,
            error_message=self.error.message if self.error else None,
            reroutes=max(0, len(self.tries) - 1),
        )

    def _tps(self) -> float | None:
        """Of the last attempt, dispatch to last token: what a sample is."""
        last = self.tries[-1] if self.tries else None
        if last is None or last.last_at is None or not last.tokens or last.last_at <= last.started_at:
            return None
        return round(last.tokens / (last.last_at - last.started_at), 3)


class CallWall:
    """The last calls, running ones among them. Keeps figures of the ended ones, not their tokens."""

    def __init__(
        self,
        now: Callable[[], float],
        max_calls: int,
        name_of: NameOf,
        on_closed: Callable[[Call, CallMessage], None] = lambda call, message: None,
    ) -> None:
        """``on_closed`` hears of each call that ended, with all its tokens."""
        self._on_closed = on_closed
        self._now = now
        self._max_calls = max_calls
        self._name_of = name_of
        self._seq = 0
        self._running: dict[CallId, Call] = {}
        self._ended: OrderedDict[CallId, CallMessage] = OrderedDict()

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def opened(self, call: Call) -> None:
        self._running[call.call_id] = call

    def closed(self, call: Call) -> CallMessage:
        self._running.pop(call.call_id, None)
        message = self._ended[call.call_id] = call.message(self._now(), self._name_of)
        while len(self._ended) > self._max_calls:
            self._ended.popitem(last=False)
        self._on_closed(call, message)
        return message

    def restore(self, calls: Sequence[CallMessage], last_seq: int) -> None:
        """Begin after ``last_seq`` with the calls of an earlier life, oldest first."""
        self._seq = last_seq
        for message in calls[-self._max_calls :]:
            self._ended[CallId(message.call_id)] = message

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def running(self) -> list[Call]:
        return list(self._running.values())

    def get(self, call_id: str) -> CallMessage:
        """Raises NotFound."""
        call = self._running.get(CallId(call_id))
        if call is not None:
            return call.message(self._now(), self._name_of)
        message = self._ended.get(CallId(call_id))
        if message is None:
            raise NotFound(f"There is no call {call_id} on the wall.", param="call_id")
        return message

    def shares(self, model_key: str, since: float) -> dict[str, float]:
        """signature -> its part of this model's calls accepted at or after ``since`` (Unix seconds) and routed."""
        counts = Counter(
            call.signature
            for call in self._ended.values()
            if call.model_key == model_key and call.accepted_at >= since and call.signature
        )
        counts.update(
            call.tries[-1].plan.decision.signature
            for call in self._running.values()
            if call.request.model == model_key and call.created >= since and call.tries
        )
        total = counts.total()
        return {signature: count / total for signature, count in counts.items()}

    def page(
        self,
        limit: int,
        before: int | None = None,
        model: str | None = None,
        mode: str | None = None,
        node: str | None = None,
        outcome: str | None = None,
    ) -> CallsResponse:
        """Newest first; ``node`` is a node_id or its beginning, anywhere in the call's routes."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidRequest(f"limit is {limit}; it must be 1 to {MAX_PAGE}.", param="limit")
        now, name_of = self._now(), self._name_of
        calls = [*self._ended.values(), *(call.message(now, name_of) for call in self._running.values())]
        wanted = sorted(
            (call for call in calls if before is None or call.seq < before), key=lambda call: call.seq, reverse=True
        )
        found = [call for call in wanted if _matches(call, model, mode, node, outcome)]
        more = len(found) > limit
        return CallsResponse(calls=tuple(found[:limit]), next_before=found[limit - 1].seq if more else None)


def _matches(call: CallMessage, model: str | None, mode: str | None, node: str | None, outcome: str | None) -> bool:
    return (
        (model is None or call.model_key == model)
        and (outcome is None or call.outcome == outcome)
        and (mode is None or any(attempt.decision.mode == mode for attempt in call.attempts))
        and (node is None or any(hop.node_id.startswith(node) for a in call.attempts for hop in a.hops))
    )


def summary(call: CallMessage) -> dict[str, object]:
    """What the last chunk and a whole answer carry as ``meshnet``: the decision and the figures."""
    decision = call.attempts[-1].decision if call.attempts else None
    return {
        "call_id": call.call_id,
        "route": call.signature,
        "mode": call.mode,
        "why": decision.why if decision else None,
        "policy": decision.policy if decision else None,
        "attempts": len(call.attempts),
        "rerouted": [{"code": a.code, "node": a.culprit, "message": a.message} for a in call.attempts[:-1]],
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "ttft_s": call.ttft_s,
        "duration_s": call.duration_s,
        "tps": call.tps,
    }
