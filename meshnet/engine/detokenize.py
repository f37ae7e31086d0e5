"""Tokens -> text, a piece at a time: never half a character, nothing that a stop string may yet swallow, and the
same text whether an answer is streamed, whole, or taken over in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshnet.domain.chat import FinishReason

_UNFINISHED = "\ufffd"
_MAX_PENDING = 8
"""Tokens held back for an unfinished character. A character has at most 4 bytes, so 4 tokens; after 8 the bytes are
no character and are shown as U+FFFD, as a decoder would."""


class AnswerStream:
    """Fulfils ``TextStream``. Each token decodes a bounded window: the pieces behind it are never decoded again."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        eos_ids: frozenset[int],
        stop: Sequence[str] = (),
        produced_ids: Sequence[int] = (),
        chars_sent: int = 0,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._decode = decode
        self._eos_ids = eos_ids
        self._stop = tuple(word for word in stop if word)
        self._window: list[int] = []
        """Tokens of the last certain piece (context for the next) and those behind it."""
        self._context = 0
        """How many tokens of the window are that context."""
        self._held = ""
        """Certain text that may be the beginning of a stop string."""
        self._owed = ""
        """Text of tokens that were produced before this stream, and never sent."""
        replayed = "".join(self._take(token_id) for token_id in produced_ids)
        self._skip = max(chars_sent - len(replayed), 0)
        self._owed = replayed[chars_sent:]

    def push(self, token_id: int) -> str:
        return self._unsent(self._take(token_id))

    def flush(self) -> str:
        """Text held back for a stop string, and whole characters before an unfinished one, which is dropped."""
        text = ""
        if self.finish_reason is None and len(self._window) > self._context:
            text = self._until_stop((self._piece(force=True) or "").rstrip(_UNFINISHED))
        text, self._held = text + self._held, ""
        return self._unsent(text)

    def _unsent(self, text: str) -> str:
        text, self._owed = self._owed + text, ""
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        return text[skipped:]

    def _take(self, token_id: int) -> str:
        if self.finish_reason is not None:
            return ""
        if token_id in self._eos_ids:
            self.finish_reason = "stop"
            text, self._held = self._held, ""
            return text
        self._window.append(token_id)
        pending = len(self._window) - self._context
        piece = self._piece(force=pending >= _MAX_PENDING)
        return self._until_stop(piece) if piece else ""

    def _piece(self, force: bool) -> str | None:
        """The text of the tokens behind the context, once it ends with a whole character."""
        before = self._decode(self._window[: self._context]) if self._context else ""
        text = self._decode(self._window)
        if (text.endswith(_UNFINISHED) and not force) or len(text) <= len(before):
            return None
        self._window = self._window[self._context :]
        self._context = len(self._window)
        return text[len(before) :]

    def _until_stop(self, piece: str) -> str:
        if not self._stop:
            return piece
        text = self._held + piece
        found = [at for word in self._stop if (at := text.find(word)) >= 0]
        if found:
            self.finish_reason, self._held = "stop", ""
            return text[: min(found)]
        keep = max(_overlap(text, word) for word in self._stop)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that is a beginning, not the whole, of ``word``."""
    for size in range(min(len(text), len(word) - 1), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0
