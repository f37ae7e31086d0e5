"""A conversation as values: turns, where they ran, how fast; what auto would have done; export. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshnet.domain.chat import ChatMessage
from meshnet.wire.routing import CallMessage, ExplainResponse
from tui.chat_settings import ChatSettings
from tui.draw import numbers
from tui.draw.spans import Line, line, span, visible
from tui.model import Shown, label_of
from tui.source import ChatEnded, ChatStarted, ChatText

CHUNK_CHARS = 1_500
"""A drawn block of an answer is closed at the first paragraph's end after this many characters: drawing one more
token then costs the same at the end of a long answer as at its start."""
HARD_CHUNK_CHARS = 4_000
"""Without any paragraph's end a block is closed at the next line's or word's end."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the next question goes: a pinned route, a policy by name, or as the tracker decides."""

    route: tuple[str, ...] = ()
    label: str = "auto"
    policy: str | None = None


AUTO = Choice()


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer, while it comes and after. Times are monotonic seconds."""

    prompt: str
    asked_at: float
    choice: Choice = AUTO
    seed: int | None = None
    answer: str = ""
    call_id: str = ""
    mode: str = ""
    signature: str = ""
    first_at: float | None = None
    last_at: float | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    finish: str = ""
    """stop, length, stopped (by the operator), or failed."""
    error: str = ""

    def with_piece(self, piece: ChatStarted | ChatText | ChatEnded, now: float) -> Turn:
        """This turn after one more piece of the stream."""
        match piece:
            case ChatStarted():
                return replace(self, call_id=piece.call_id, mode=piece.mode, signature=piece.signature)
            case ChatText():
                first = self.first_at if self.first_at is not None else now
                tokens = self.tokens + piece.tokens
                return replace(self, answer=self.answer + piece.text, first_at=first, last_at=now, tokens=tokens)
            case ChatEnded():
                return replace(
                    self,
                    finish=piece.finish_reason,
                    tokens=piece.completion_tokens or self.tokens,
                    prompt_tokens=piece.prompt_tokens,
                    mode=piece.mode or self.mode,
                    signature=piece.signature or self.signature,
                )

    @property
    def is_running(self) -> bool:
        return not self.finish

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_at is None else self.first_at - self.asked_at

    @property
    def tps(self) -> float | None:
        """Tokens after the first over the time since it: what the reader sees."""
        if self.first_at is None or self.last_at is None or self.tokens < 2 or self.last_at <= self.first_at:
            return None
        return (self.tokens - 1) / (self.last_at - self.first_at)


def messages(turns: Sequence[Turn], prompt: str) -> tuple[ChatMessage, ...]:
    """The history as the next question carries it: answered turns, then the question."""
    said: list[ChatMessage] = []
    for turn in turns:
        if turn.answer:
            said += [ChatMessage("user", turn.prompt), ChatMessage("assistant", turn.answer)]
    return (*said, ChatMessage("user", prompt))


def head_line(
    model_key: str, is_ready: bool, settings: ChatSettings, last_seed: int | None, is_streaming: bool
) -> Line:
    """The model and the settings. The seed is that of the last question where one was drawn: what it needs to be asked
    again."""
    drawn = "random" if last_seed is None else f"{last_seed} (random)"
    return line(
        (" model ", "dim"),
        span(model_key or "no model", "strong" if is_ready else "warn"),
        ("  temperature ", "dim"),
        f"{settings.temperature:g}" if settings.temperature else "0 (greedy)",
        ("  seed ", "dim"),
        drawn if settings.seed is None else str(settings.seed),
        ("  max_tokens ", "dim"),
        "auto" if settings.max_tokens is None else str(settings.max_tokens),
        ("  streaming", "accent") if is_streaming else "",
        ("" if is_ready else "  not every layer is held", "warn"),
    )


def status_line(shown: Shown | None, turn: Turn) -> Line:
    """One line under an answer: how it was routed, how fast it came, how it ended."""
    route = label_of(shown, turn.signature) if shown and turn.signature else visible(turn.signature)
    speed = f"  {turn.tokens} tok  ttft {numbers.duration(turn.ttft_s)}  {numbers.tps(turn.tps)} tok/s"
    parts = line(("  ", ""), (turn.mode or "asking", "accent"), " ", (route, "strong"), speed)
    if turn.error:
        return (*parts, ("  x ", "bad"), span(turn.error, "bad"))
    return (*parts, (f"  {turn.finish or 'streaming, esc stops'}", "dim"))


def counterfactual(shown: Shown, turn: Turn, auto: ExplainResponse | None, measured: float | None) -> Line:
    """What auto would have used, as the tracker explained it when the question was asked, and what the choice made of
    it cost. ``measured`` is the answer's tokens/s as the tracker samples them."""
    if auto is None or auto.decision is None or turn.choice == AUTO:
        return ()
    decision = auto.decision
    if decision.signature == turn.signature:
        return line(("  auto would have used this route too", "dim"))
    chance = "" if decision.probability is None else f", p {decision.probability:.2f}"
    row = next((row for row in auto.candidates if row.signature == decision.signature), None)
    expected = (row.predicted_tps or row.learned_tps or row.prior_tps) if row else None
    name = label_of(shown, decision.signature)
    text = f"  auto would have used {name} ({visible(decision.mode)}{chance}): expected {numbers.tps(expected)} tok/s"
    if not expected or not measured:
        return line((text, "dim"))
    what, cost = "pin" if turn.choice.route else "policy", 1 - measured / expected
    verdict = f"so this {what} costs {cost:.0%}" if cost >= 0 else f"so this {what} gains {-cost:.0%}"
    return line((text + ", ", "dim"), (verdict, "warn" if cost > 0.1 else "dim"))


def between_hops(call: CallMessage) -> Line:
    """The part of a token's time that no hop accounts for, from the call's record: the wire, and waiting."""
    hops = call.attempts[-1].hops if call.attempts else ()
    spent = [(hop.computing_us or 0) + (hop.queued_us or 0) for hop in hops if hop.computing_us is not None]
    steps = call.completion_tokens - 1
    if call.duration_s is None or call.ttft_s is None or steps < 1 or not hops or len(spent) != len(hops):
        return ()
    token_ms, hops_ms = (call.duration_s - call.ttft_s) / steps * 1000, sum(spent) / 1000
    if token_ms < hops_ms:
        return ()  # A re-route or a very short answer: the two means are not of the same tokens.
    text = f"  {_ms(token_ms)} ms/tok: hops {_ms(hops_ms)}, between {_ms(token_ms - hops_ms)}"
    return line((text, "dim"))


def _ms(value: float) -> str:
    """At most four cells up to ten seconds: a race's lane is 39 wide in a small terminal."""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def race_verdict(a: Turn, b: Turn) -> Line:
    """Same text or where it parts; who was faster and by how much."""
    if a.is_running or b.is_running:
        return line(("  racing; esc stops both", "dim"))
    same = a.answer == b.answer
    at = next(
        (i for i, (x, y) in enumerate(zip(a.answer, b.answer, strict=False)) if x != y),
        min(len(a.answer), len(b.answer)),
    )
    text = "  same text" if same else f"  texts part at character {at}"
    if a.tps and b.tps:
        winner, ratio = ("A", a.tps / b.tps) if a.tps >= b.tps else ("B", b.tps / a.tps)
        verdict = "equally fast" if ratio < 1.01 else f"{winner} is {ratio:.2f} x as fast"
        return line((text, "good" if same else "warn"), (f"   {verdict}", "strong"))
    return line((text, "good" if same else "warn"))


def to_markdown(turns: Sequence[Turn], model_key: str) -> str:
    """The conversation as a document."""
    said = [f"# Conversation with {model_key}", ""]
    for turn in turns:
        said += [f"**You:** {turn.prompt}", "", turn.answer or f"_{turn.error or 'no answer'}_", ""]
        said += [
            f"_{turn.mode} {turn.signature}, {turn.tokens} tokens, {numbers.tps(turn.tps)} tok/s, {turn.finish}_",
            "",
        ]
    return "\n".join(said)


def split_chunk(text: str) -> int | None:
    """Where the block ``text`` may be closed for good; None while it should go on growing. Never inside a code fence
    unless the fence itself is endless."""
    if len(text) < CHUNK_CHARS:
        return None
    at = text.rfind("\n\n")
    if at > 0 and text[:at].count("```") % 2 == 0:
        return at + 2
    if len(text) < HARD_CHUNK_CHARS:
        return None
    for end in ("\n", " "):
        at = text.rfind(end)
        if at > 0:
            return at + 1
    return len(text)
