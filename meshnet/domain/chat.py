"""What a chat asks for, free of any dialect: messages, sampling, and why an answer ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DEFAULT_MAX_TOKENS = 512
"""Tokens of an answer when the client gives no limit. KV is reserved for it at OPEN, so an unbounded default
would let one chat hold a whole node; 512 tokens are about 380 words. Raising it costs admission."""

FinishReason = Literal["stop", "length"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn; ``content`` is plain text (text parts are joined by wire/openai.py)."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tail picks a token. Randomness is a function of (seed, position) alone, so that a resumed
    generation draws what the unbroken one would have drawn.

    temperature 0 (or top_p 0) is greedy. top_k 0 and min_p 0 are off. ``logprobs`` is None for off, else the
    number of alternatives (0..20) wanted beside the chosen token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a head needs to answer one chat, whichever attempt it is."""

    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    max_tokens: int | None = None
    """None: DEFAULT_MAX_TOKENS, cut to what the context has left."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """For benchmarks: the answer goes on to max_tokens."""
