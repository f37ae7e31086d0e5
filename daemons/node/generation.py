"""One answer as its head sees it: prompt, tokens so far, text, prefill window, pace. No IO and no links."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from daemons.kit.link import Link
from daemons.node.packing import PREFILL_ROWS
from daemons.node.sessions import Session
from meshnet.domain.chat import DEFAULT_MAX_TOKENS
from meshnet.domain.engine import SessionKey, TextCodec, TextStream
from meshnet.domain.errors import ContextLengthExceeded
from meshnet.wire.messages import Delta, Finished, Generate, Open, Probed, Token, TokenLogprob

PACE_TOKENS = 32
"""Recent tokens whose slowest gap says what is slow for this route."""


@dataclass(slots=True, eq=False)
class Generation:
    """Mutable state of one attempt; ``driver.Driver`` owns it."""

    ask: Generate
    tracker: Link
    started_at: float
    task: asyncio.Task[Any] | None = None
    session: Session | None = None
    hop_links: dict[str, Link] = field(default_factory=dict)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    stream: TextStream | None = None
    prompt_ids: tuple[int, ...] = ()
    produced_ids: list[int] = field(default_factory=list)
    max_tokens: int = 0
    fed: int = 0
    """Position behind the last row that entered the ring."""
    round_trip: int = 0
    """Position behind the last row that went all the way round."""
    moved_at: float = 0.0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_TOKENS))
    answers: dict[str, Probed] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    prompt_sent: bool = False
    ended: bool = False

    @property
    def key(self) -> SessionKey:
        return (self.ask.session, self.ask.attempt)

    @property
    def known_ids(self) -> tuple[int, ...]:
        """Prompt and the tokens of earlier attempts: what the ring prefills."""
        return (*self.prompt_ids, *self.ask.produced_ids)

    def begin(self, prompt_ids: tuple[int, ...], codec: TextCodec, context_length: int) -> None:
        """Take in the prompt. Raises ContextLengthExceeded."""
        if len(prompt_ids) >= context_length:
            raise ContextLengthExceeded(len(prompt_ids), context_length)
        request = self.ask.request
        self.prompt_ids = prompt_ids
        self.produced_ids = list(self.ask.produced_ids)
        room = context_length - len(prompt_ids)
        self.max_tokens = min(request.max_tokens or DEFAULT_MAX_TOKENS, room)
        self.stream = codec.stream(
            prompt_ids, self.ask.produced_ids, self.ask.chars_sent, request.stop, request.ignore_eos
        )

    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the answer is over, if it is."""
        assert self.stream is not None
        if self.stream.finish_reason is not None:
            return self.stream.finish_reason
        return "length" if len(self.produced_ids) >= self.max_tokens else None

    def open_frame(self) -> Open:
        """OPEN for the head itself (index 0)."""
        ask = self.ask
        return Open(
            session=ask.session,
            attempt=ask.attempt,
            call_id=ask.call_id,
            model_key=ask.model_key,
            revision=ask.revision,
            dtype=ask.dtype,
            hops=ask.hops,
            index=0,
            reserve_tokens=len(self.prompt_ids) + self.max_tokens,
            sampling=ask.request.sampling,
            prompt_ids=self.prompt_ids,
            produced_ids=ask.produced_ids,
            ticket=ask.ticket,
        )

    def next_chunk(self) -> tuple[int, tuple[int, ...], bool] | None:
        """(position, token ids, sample) of the next prefill rows that may enter the ring now: one chunk for each hop
        and one on the way, which keeps every hop busy and bounds what lies in queues."""
        known = self.known_ids
        window = (len(self.ask.hops) + 1) * PREFILL_ROWS
        if self.fed >= len(known) or self.fed - self.round_trip >= window:
            return None
        position = self.fed
        self.fed = min(len(known), position + PREFILL_ROWS)
        return position, known[position : self.fed], self.fed == len(known)

    def take(self, token: Token, codec: TextCodec, now: float) -> Delta | None:
        """A token that came round as the delta it makes. None for one that is not the next."""
        if token.position != self.fed or self.stream is None or self.finish_reason() is not None:
            return None
        if self.round_trip >= len(self.known_ids):
            self.gaps_s.append(now - self.moved_at)
        self.round_trip, self.moved_at = token.position, now
        self.produced_ids.append(token.token_id)
        text = self.stream.push(token.token_id)
        if self.finish_reason() == "length":
            text += self.stream.flush()
        return Delta(
            session=token.session,
            attempt=token.attempt,
            text=text,
            token_ids=(token.token_id,),
            logprobs=() if token.logprob is None else (logprob_of(token, codec),),
            prompt_token_ids=self.unsent_prompt(),
            hop_us=token.hop_us,
        )

    def unsent_prompt(self) -> tuple[int, ...] | None:
        """The prompt's ids, for the first delta only."""
        if self.prompt_sent:
            return None
        self.prompt_sent = True
        return self.prompt_ids

    def finished(self) -> Finished:
        reason = self.finish_reason()
        assert reason is not None
        return Finished(
            session=self.ask.session,
            attempt=self.ask.attempt,
            finish_reason=reason,
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=len(self.produced_ids),
        )


def logprob_of(token: Token, codec: TextCodec) -> TokenLogprob:
    text = codec.token_text(token.token_id)
    return TokenLogprob(
        token=text,
        logprob=token.logprob or 0.0,
        bytes=tuple(text.encode()),
        top=tuple((codec.token_text(token_id), logprob) for token_id, logprob in token.top_logprobs),
    )
