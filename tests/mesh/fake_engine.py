"""An engine without torch whose every token is a hash of (prompt, position, layers applied in order).

A row is 32 bytes (8 float32). Layer ``l`` keeps a running digest of all rows it has seen, its "KV"; a row leaves it as
the hash of (row, layer, digest). A skipped, doubled or misplaced layer, row or position changes every token after it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshnet.domain.chat import ChatMessage, FinishReason
from meshnet.domain.engine import (
    EngineSpeed,
    KvUse,
    ModelFacts,
    Rows,
    SampledToken,
    SessionKey,
    SessionPlan,
    StepItem,
    StepResult,
)
from meshnet.domain.errors import InvalidRequest, MeshnetError, NodeFailed, Overloaded
from meshnet.domain.shards import Shard

HIDDEN = 8
ROW_BYTES = 32
VOCAB = 5000
EOS = 0
N_LAYERS = 30
TOKEN_KV_BYTES = 64
"""Per token and layer, as far as admission is concerned."""


def facts(n_layers: int = N_LAYERS, context_length: int = 2048) -> ModelFacts:
    return ModelFacts("fake", "0123456789abcdef", n_layers, HIDDEN, VOCAB, context_length, "float32")


@dataclass(slots=True)
class FakeSession:
    plan: SessionPlan
    position: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)


class FakeEngine:
    """Fulfils ShardEngine. ``pause``: an event the next steps wait for (a stalled node). ``fail_next``: raised once."""

    def __init__(self, shard: Shard, kv_budget_bytes: int = 1 << 24, model: ModelFacts | None = None) -> None:
        self.facts = model or facts()
        self.shard = shard
        self.sessions: dict[SessionKey, FakeSession] = {}
        self.budget = kv_budget_bytes
        self.steps: list[int] = []
        """Items of each step."""
        self.gate = threading.Event()
        self.gate.set()
        self.fail_next: Exception | None = None
        self.makes_nan = False
        """Notices that its own rows are nonsense."""
        self.emits_nan = False
        """Passes nonsense on without a word, as an engine that does not look would."""

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        if not self.shard.holds(plan.start_layer, plan.end_layer):
            raise InvalidRequest("outside the shard")
        if key in self.sessions:
            raise InvalidRequest("open twice")
        needed = self._bytes(plan)
        if needed > self.budget - self.kv_use().reserved_bytes:
            raise Overloaded("no KV left", code="kv_full")
        self.sessions[key] = FakeSession(plan)

    def close(self, key: SessionKey) -> None:
        self.sessions.pop(key, None)

    def kv_use(self) -> KvUse:
        return KvUse(self.budget, sum(self._bytes(s.plan) for s in self.sessions.values()), len(self.sessions))

    def kv_bytes_per_token(self, start_layer: int, end_layer: int) -> int:
        return TOKEN_KV_BYTES * (end_layer - start_layer + 1)

    def measure(self) -> EngineSpeed:
        return EngineSpeed(100.0, 400.0, 1000.0)

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        self.gate.wait(30)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.steps.append(len(items))
        ranges = {
            (self.sessions[i.key].plan.start_layer, self.sessions[i.key].plan.end_layer)
            for i in items
            if i.key in self.sessions
        }
        assert len(ranges) <= 1, "one step runs one range"
        return [self._item(item) for item in items]

    def forward(self, rows: Rows | Sequence[int], start_layer: int, end_layer: int) -> Rows:
        if not self.shard.holds(start_layer, end_layer):
            raise InvalidRequest("outside the shard")
        session = FakeSession(SessionPlan(start_layer, end_layer, 1))
        entering = _rows_of(rows) if isinstance(rows, Rows) else [_embed(t, n) for n, t in enumerate(rows)]
        out = b"".join(_run(session, row) for row in entering)
        return Rows("float32", (len(entering), HIDDEN), out)

    def _bytes(self, plan: SessionPlan) -> int:
        return plan.reserve_tokens * self.kv_bytes_per_token(plan.start_layer, plan.end_layer)

    def _item(self, item: StepItem) -> StepResult:
        session = self.sessions.get(item.key)
        error: MeshnetError | None = None
        if session is None:
            error = NodeFailed("not open", code="unknown_session")
        elif item.position != session.position:
            error = NodeFailed(f"position {item.position}, not {session.position}", code="bad_position")
        if session is None or error is not None:
            return StepResult(item.key, error=error)
        if item.token_ids is not None:
            entering = [_embed(token, item.position + n) for n, token in enumerate(item.token_ids)]
        else:
            assert item.rows is not None
            entering = _rows_of(item.rows)
        if self.makes_nan or NAN_ROW in entering:  # As with numbers: nonsense in, nonsense out.
            return StepResult(item.key, error=NodeFailed("not finite", code="nan"))
        out = [_run(session, row) for row in entering]
        session.position += len(entering)
        if self.emits_nan:
            out = [NAN_ROW for _ in out]
        if session.plan.end_layer < self.facts.n_layers - 1:
            return StepResult(item.key, rows=Rows("float32", (len(out), HIDDEN), b"".join(out)))
        token = SampledToken(1 + int.from_bytes(out[-1][:8], "little") % (VOCAB - 1)) if item.sample else None
        return StepResult(item.key, token=token)


def expected_tokens(prompt_ids: Sequence[int], count: int, n_layers: int = N_LAYERS) -> list[int]:
    """What an unbroken run of one whole engine produces."""
    engine = FakeEngine(Shard(0, n_layers - 1), 1 << 40, facts(n_layers, 1 << 20))
    engine.open((0, 0), SessionPlan(0, n_layers - 1, len(prompt_ids) + count))
    ids, position, tokens = tuple(prompt_ids), 0, []
    for _ in range(count):
        (result,) = engine.step([StepItem((0, 0), position, token_ids=ids, sample=True)])
        assert result.token is not None
        position += len(ids)
        ids = (result.token.token_id,)
        tokens.append(result.token.token_id)
    return tokens


def expected_text(prompt_ids: Sequence[int], count: int) -> str:
    return "".join(FakeCodec().token_text(token) for token in expected_tokens(prompt_ids, count))


class FakeStream:
    """Fulfils TextStream: holds back what may begin a stop string."""

    def __init__(self, produced_ids: Sequence[int], chars_sent: int, stop: Sequence[str], ignore_eos: bool) -> None:
        self.finish_reason: FinishReason | None = None
        self._stop = stop
        self._ignore_eos = ignore_eos
        self._text = ""
        self._sent = chars_sent
        for token in produced_ids:
            self._take(token)

    def push(self, token_id: int) -> str:
        self._take(token_id)
        return self._emit(self._safe_end())

    def flush(self) -> str:
        return self._emit(len(self._text))

    def _take(self, token_id: int) -> None:
        if self.finish_reason is not None:
            return
        if token_id == EOS and not self._ignore_eos:
            self.finish_reason = "stop"
            return
        self._text += FakeCodec().token_text(token_id)
        ends = [self._text.index(word) for word in self._stop if word in self._text]
        if ends:
            self._text = self._text[: min(ends)]
            self.finish_reason = "stop"

    def _safe_end(self) -> int:
        if self.finish_reason is not None:
            return len(self._text)
        held = (n for word in self._stop for n in range(len(word) - 1, 0, -1) if self._text.endswith(word[:n]))
        return len(self._text) - max(held, default=0)

    def _emit(self, end: int) -> str:
        text = self._text[self._sent : max(end, self._sent)]
        self._sent = max(end, self._sent)
        return text


class FakeCodec:
    """Fulfils TextCodec: a prompt is its words' hashes, a token is shown as ``w<id> ``."""

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        return prompt_ids(" ".join(message.content for message in messages))

    def stream(
        self,
        prompt_ids: Sequence[int],
        produced_ids: Sequence[int] = (),
        chars_sent: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> FakeStream:
        return FakeStream(produced_ids, chars_sent, stop, ignore_eos)

    def token_text(self, token_id: int) -> str:
        return f"w{token_id} "


def prompt_ids(text: str) -> list[int]:
    return [1 + int.from_bytes(hashlib.sha256(w.encode()).digest()[:4], "little") % (VOCAB - 1) for w in text.split()]


FINITE = int.from_bytes(b"\xff\xff\xff\xbf" * HIDDEN, "little")
"""Takes the uppermost bit of each float32's exponent away: any bytes are finite numbers then."""
NAN_ROW = b"\xff" * ROW_BYTES


def _embed(token_id: int, position: int) -> bytes:
    return _as_row(hashlib.sha256(b"embed %d at %d" % (token_id, position)).digest())


def _as_row(digest: bytes) -> bytes:
    return (int.from_bytes(digest, "little") & FINITE).to_bytes(ROW_BYTES, "little")


def _run(session: FakeSession, row: bytes) -> bytes:
    for layer in range(session.plan.start_layer, session.plan.end_layer + 1):
        seen = hashlib.sha256(session.digests.get(layer, b"") + row).digest()
        session.digests[layer] = seen
        row = _as_row(hashlib.sha256(row + seen + b"layer %d" % layer).digest())
    return row


def _rows_of(rows: Rows) -> list[bytes]:
    data = bytes(rows.data)
    return [data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)]
