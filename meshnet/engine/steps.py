"""The packed engine: sessions, and one forward over the rows of all of them (``domain.engine.ShardEngine``).

A step changes nothing until it has worked: keys are written behind the counted positions and recurrent states are
kept aside, so a step that ran out of memory runs again, item by item, and only those that still fail end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet.domain.engine import (
    EngineSpeed,
    KvUse,
    ModelFacts,
    Rows,
    SessionKey,
    SessionPlan,
    StepItem,
    StepResult,
)
from meshnet.domain.errors import InvalidRequest, MeshnetError, NodeFailed, Overloaded
from meshnet.domain.shards import Shard
from meshnet.engine.attention import Span
from meshnet.engine.kv import KvPool, SessionKv
from meshnet.engine.probe import measure
from meshnet.engine.rows import from_rows, to_rows
from meshnet.engine.sampling import History, sample
from meshnet.engine.shard import LoadedShard


@dataclass(slots=True)
class Session:
    plan: SessionPlan
    kv: SessionKv
    history: History
    position: int = 0


class PackedEngine:
    """Fulfils ``ShardEngine`` with torch. Called from one thread."""

    def __init__(self, loaded: LoadedShard, kv_budget_bytes: int) -> None:
        self._loaded = loaded
        self._pool = KvPool(kv_budget_bytes)
        self._sessions: dict[SessionKey, Session] = {}
        self.facts: ModelFacts = loaded.facts
        self.shard: Shard = loaded.shard

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        self._require_range(plan.start_layer, plan.end_layer)
        if key in self._sessions:
            raise InvalidRequest(f"session {key} is already open here.")
        if not 1 <= plan.reserve_tokens <= self.facts.context_length:
            raise InvalidRequest(
                f"a session of {plan.reserve_tokens} tokens; this model holds 1..{self.facts.context_length}."
            )
        shape = self._loaded.kv_shape(plan.start_layer, plan.end_layer)
        self._pool.reserve(key, shape.session_bytes(plan.reserve_tokens))
        try:
            with _out_of_memory_as_overloaded():
                kv = SessionKv(shape, plan.reserve_tokens, self._loaded.dtype, self._loaded.device)
        except MeshnetError:
            self._pool.release(key)
            raise
        self._sessions[key] = Session(plan, kv, History(plan.prompt_ids, plan.produced_ids))

    def close(self, key: SessionKey) -> None:
        self._sessions.pop(key, None)
        self._pool.release(key)

    def kv_use(self) -> KvUse:
        return self._pool.use()

    def kv_bytes_per_token(self, start_layer: int, end_layer: int) -> int:
        return self._loaded.kv_shape(start_layer, end_layer).token_bytes

    def measure(self) -> EngineSpeed:
        return measure(self)

    @torch.inference_mode()
    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        """One forward over all items that are in order; the others get their own error."""
        errors = {item.key: error for item in items if (error := self._problem(item)) is not None}
        good = [item for item in items if item.key not in errors]
        results = {key: StepResult(key, error=error) for key, error in errors.items()}
        if good:
            results.update((result.key, result) for result in self._step_all(good))
        return [results[item.key] for item in items]

    @torch.inference_mode()
    def forward(self, rows: Rows | Sequence[int], start_layer: int, end_layer: int) -> Rows:
        """See ``ShardEngine``. Needs no session and no reservation: its KV lives as long as the call."""
        self._require_range(start_layer, end_layer)
        loaded = self._loaded
        x = from_rows(rows, self.facts.dtype, self.facts.hidden_size)[None] if isinstance(rows, Rows) else None
        if x is None:
            if start_layer != 0:
                raise InvalidRequest(f"layer {start_layer} takes rows; token ids enter at layer 0.")
            x = loaded.embed(tuple(rows))  # type: ignore[arg-type]
        count = x.shape[1]
        if not 1 <= count <= self.facts.context_length:
            raise InvalidRequest(f"{count} rows; this model holds 1..{self.facts.context_length}.")
        with _out_of_memory_as_overloaded():
            kv = SessionKv(loaded.kv_shape(start_layer, end_layer), count, loaded.dtype, loaded.device)
            out = loaded.run(x.to(loaded.device), [Span(kv, 0, count, 0)], [count], start_layer, end_layer)
            if end_layer == loaded.last_layer and loaded.head is not None:
                return to_rows(loaded.head(out[:, -1:]))
        return to_rows(out[0])

    def _step_all(self, items: Sequence[StepItem]) -> list[StepResult]:
        try:
            with _out_of_memory_as_overloaded():
                return self._step_packed(items)
        except Overloaded as error:
            if len(items) == 1:
                return [StepResult(items[0].key, error=error)]
        except MeshnetError as error:
            if len(items) == 1:
                return [StepResult(items[0].key, error=error)]
        return [result for item in items for result in self._step_all([item])]

    def _step_packed(self, items: Sequence[StepItem]) -> list[StepResult]:
        sessions = [self._sessions[item.key] for item in items]
        plan = sessions[0].plan
        spans, offset = [], 0
        for item, session in zip(items, sessions, strict=True):
            spans.append(Span(session.kv, offset, item.n_rows, item.position))
            offset += item.n_rows
        lengths = [session.plan.reserve_tokens for session in sessions]
        out = self._loaded.run(self._pack(items), spans, lengths, plan.start_layer, plan.end_layer)
        is_tail = plan.end_layer == self._loaded.last_layer
        logits = self._logits(out, items, spans) if is_tail else None
        for item, session in zip(items, sessions, strict=True):
            session.position = item.position + item.n_rows
            for state in session.kv.states.values():
                state.commit()
        if not is_tail:
            return self._passed_on(out, items, spans)
        return [
            self._sampled(item, session, None if logits is None else logits.get(item.key))
            for item, session in zip(items, sessions, strict=True)
        ]

    def _passed_on(self, out: Tensor, items: Sequence[StepItem], spans: Sequence[Span]) -> list[StepResult]:
        """Rows for the next hop; those of a session that are no finite numbers end it here, where they were made."""
        # One sum for all; it may also overflow on its own in 16 bits, so each session is looked at before it is blamed.
        all_finite = bool(torch.isfinite(out.sum()))
        results = []
        for item, span in zip(items, spans, strict=True):
            rows = out[0, span.offset : span.offset + span.n_rows]
            if all_finite or bool(torch.isfinite(rows).all()):
                results.append(StepResult(item.key, rows=to_rows(rows)))
            else:
                error = NodeFailed("The rows of this session are not finite numbers.", code="nan")
                results.append(StepResult(item.key, error=error))
        return results

    def _pack(self, items: Sequence[StepItem]) -> Tensor:
        """(1, rows, hidden) of all items, embedded where they are token ids."""
        if all(item.token_ids is not None for item in items):
            return self._loaded.embed([t for item in items for t in item.token_ids or ()])
        parts = []
        for item in items:
            assert item.rows is not None
            parts.append(from_rows(item.rows, self.facts.dtype, self.facts.hidden_size))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None].to(self._loaded.device)

    def _logits(self, out: Tensor, items: Sequence[StepItem], spans: Sequence[Span]) -> dict[SessionKey, Tensor] | None:
        wanted = [
            (item.key, span.offset + span.n_rows - 1) for item, span in zip(items, spans, strict=True) if item.sample
        ]
        head = self._loaded.head
        if not wanted or head is None:
            return None
        last = out if len(wanted) == out.shape[1] else out[:, [row for _, row in wanted]]
        return {key: row for (key, _), row in zip(wanted, head(last).cpu(), strict=True)}

    def _sampled(self, item: StepItem, session: Session, logits: Tensor | None) -> StepResult:
        if logits is None or session.plan.sampling is None:
            return StepResult(item.key)
        try:
            token = sample(logits, session.plan.sampling, session.history, session.position)
        except NodeFailed as error:
            return StepResult(item.key, error=error)
        session.history.add(token.token_id)
        return StepResult(item.key, token=token)

    def _problem(self, item: StepItem) -> MeshnetError | None:
        session = self._sessions.get(item.key)
        if session is None:
            return NodeFailed(f"session {item.key} is not open here.", code="unknown_session")
        if item.position != session.position or item.n_rows < 1:
            return NodeFailed(
                f"{item.n_rows} rows at position {item.position}; position {session.position} comes next.",
                code="bad_position",
            )
        if item.position + item.n_rows > session.plan.reserve_tokens:
            return NodeFailed(
                f"position {item.position + item.n_rows} is beyond the {session.plan.reserve_tokens} reserved tokens.",
                code="beyond_reservation",
            )
        if (item.token_ids is not None) != (session.plan.start_layer == 0):
            return InvalidRequest(
                f"token ids enter at layer 0 alone; this session starts at {session.plan.start_layer}."
            )
        return None

    def _require_range(self, start_layer: int, end_layer: int) -> None:
        if not self.shard.holds(start_layer, end_layer):
            raise InvalidRequest(f"layers {start_layer}-{end_layer} are not inside this shard, {self.shard}.")


@contextlib.contextmanager
def _out_of_memory_as_overloaded() -> Iterator[None]:
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _no_memory() from error
    except RuntimeError as error:
        # torch's CPU allocator has no exception of its own.
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise _no_memory() from error


def _no_memory() -> Overloaded:
    return Overloaded("This node has no memory left for this session.", code="node_oom")
