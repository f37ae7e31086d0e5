"""The seam between a node and whatever runs its layers.

``daemons/node`` is written and tested against these protocols; ``meshnet/engine`` fulfils them with torch, tests
with a fake whose token is a hash of the layers applied, and an int4 or llama.cpp engine can be put here without a
change elsewhere. Everything here is called from ONE thread (the worker's), except ``TextCodec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from meshnet.domain.chat import ChatMessage, FinishReason, Sampling
from meshnet.domain.errors import MeshnetError
from meshnet.domain.shards import Shard

SessionKey = tuple[int, int]
"""(session, attempt): one generation on one node. Another attempt of the same call is another key."""

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element, by the dtype names that cross the wire."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Hidden states that cross the seam: ``shape`` is (rows, hidden), ``data`` its raw little-endian bytes, C order."""

    dtype: str
    shape: tuple[int, int]
    data: memoryview | bytes

    @property
    def size_bytes(self) -> int:
        return self.shape[0] * self.shape[1] * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What everyone may know of a loaded model without knowing the engine."""

    model_key: str
    revision: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Everything ``open`` needs. The range is what this hop executes, inside the shard.

    ``reserve_tokens`` = prompt + produced + still to come: KV for all of it is reserved before prefill.
    Only the tail uses sampling, prompt_ids and produced_ids (penalties look back over them).
    """

    start_layer: int
    end_layer: int
    reserve_tokens: int
    sampling: Sampling | None = None
    prompt_ids: tuple[int, ...] = ()
    produced_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepItem:
    """One session's part of a packed step: rows at positions ``position..position + n - 1``.

    Exactly one of ``token_ids`` (the session starts at layer 0) and ``rows`` is given.
    ``sample``: the last row is the end of the known tokens, so a tail answers with a token.
    """

    key: SessionKey
    position: int
    token_ids: tuple[int, ...] | None = None
    rows: Rows | None = None
    sample: bool = False

    @property
    def n_rows(self) -> int:
        if self.token_ids is not None:
            return len(self.token_ids)
        assert self.rows is not None
        return self.rows.shape[0]


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprob: float | None = None
    """Natural log of the chosen token's probability, if asked for."""
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """Per item, in the order given: rows to pass on, or a token (tail with ``sample``), or neither (tail in the middle
    of a prefill), or the error that ends this session alone."""

    key: SessionKey
    rows: Rows | None = None
    token: SampledToken | None = None
    error: MeshnetError | None = None


@dataclass(frozen=True, slots=True)
class KvUse:
    """The KV pool in bytes; ``reserved_bytes`` is what open sessions may still fill."""

    budget_bytes: int
    reserved_bytes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What a shard measured of itself, in tokens/s over its own layers (``prefill``: prompt tokens/s)."""

    decode_tps: float
    decode_batch8_tps: float
    prefill_tps: float
    spread: float = 0.0
    """(max - min) / median of the decode runs."""
    extra: dict[str, float] = field(default_factory=dict)


class ShardEngine(Protocol):
    """A loaded shard. Its hidden rows are ``facts.dtype`` and ``facts.hidden_size`` wide."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def shard(self) -> Shard: ...

    def open(self, key: SessionKey, plan: SessionPlan) -> None:
        """Reserve KV and make the session. Raises Overloaded (no KV left) or InvalidRequest (not my layers)."""
        ...

    def step(self, items: Sequence[StepItem]) -> list[StepResult]:
        """One packed forward over all items. All items of one call execute the same start_layer..end_layer."""
        ...

    def close(self, key: SessionKey) -> None:
        """Free the session's KV. Unknown keys are ignored."""
        ...

    def forward(self, rows: Rows | Sequence[int], start_layer: int, end_layer: int) -> Rows:
        """One stateless pass over rows at positions 0.. (parity checks, audits). Token ids where start_layer is 0.
        At the tail the answer is the logits of the last row, shape (1, vocab), float32."""
        ...

    def kv_use(self) -> KvUse: ...

    def kv_bytes_per_token(self, start_layer: int, end_layer: int) -> int: ...

    def measure(self) -> EngineSpeed:
        """Time a few steps on scratch sessions: seconds, not minutes."""
        ...


class TextStream(Protocol):
    """One answer's way from tokens to text. Never emits half a character, nor text that a stop string may yet eat."""

    finish_reason: FinishReason | None
    """Set once the answer is over by EOS or a stop string."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; possibly empty."""
        ...

    def flush(self) -> str:
        """What was held back, when the answer ends by length."""
        ...


class TextCodec(Protocol):
    """Tokenizer and chat template of a head. Thread-safe."""

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Prompt ids with the template applied and the generation prompt added. Control tokens written in a message
        are plain text. Raises InvalidRequest(code="chat_template") with the template's own refusal."""
        ...

    def stream(
        self,
        prompt_ids: Sequence[int],
        produced_ids: Sequence[int] = (),
        chars_sent: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> TextStream:
        """A stream that goes on after ``produced_ids``, of which ``chars_sent`` characters were already sent."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as text, for logprobs; control characters as they are."""
        ...
