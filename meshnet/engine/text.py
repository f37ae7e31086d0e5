"""Tokenizer and chat template of a head: messages -> ids, ids -> text as it becomes certain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from meshnet.domain.chat import ChatMessage
from meshnet.domain.errors import WeightsError
from meshnet.engine.detokenize import AnswerStream
from meshnet.engine.templates import DEFAULT_TEMPLATE, TemplateRenderer
from meshnet.weights import layout

_MARK = "\ufdd0"
"""A noncharacter (never in text that is exchanged), put into control words of a message so that they match nothing."""
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|end_of_text|>", "<|eom_id|>")
"""Control words that end a turn in the templates of the families served. One of them ends an answer if the template
writes it and the tokenizer knows it as one token."""


class ModelTextCodec:
    """Fulfils ``TextCodec`` from a model's folder. Thread-safe: nothing here changes after it was made."""

    def __init__(
        self, tokenizer: Tokenizer, template: str | None, special_tokens: dict[str, str], eos_ids: Iterable[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self.has_template = template is not None
        self._renderer = TemplateRenderer(template if template is not None else DEFAULT_TEMPLATE, special_tokens)
        self._specials = {
            token.content: token_id for token_id, token in _added_tokens(tokenizer).items() if token.special
        }
        words = sorted(self._specials, key=len, reverse=True)
        self._control = re.compile("|".join(re.escape(word) for word in words)) if words else None
        ends = {self._specials[word] for word in _END_OF_TURN if word in (template or "") and word in self._specials}
        self.eos_ids = frozenset(eos_ids) | ends

    @classmethod
    def load(cls, folder: Path) -> ModelTextCodec:
        """Raises WeightsError if the folder has no usable tokenizer."""
        try:
            loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise WeightsError(f"{folder} has no usable tokenizer: {error}") from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise WeightsError(f"{folder}: its tokenizer, {type(loaded).__name__}, has no fast form.")
        words = {key: value for key, value in loaded.special_tokens_map.items() if isinstance(value, str)}
        ids = {loaded.eos_token_id} if loaded.eos_token_id is not None else set()
        for name in (layout.CONFIG, layout.GENERATION_CONFIG):
            ids |= _eos_of(folder / name)
        return cls(backend, _template_of(loaded), words, ids)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        hidden = [ChatMessage(message.role, self._hide_control(message.content)) for message in messages]
        text = self._renderer.render(hidden)
        if _MARK not in text:
            # The default template writes no beginning of sequence; the tokenizer does, where the model wants one.
            return self._tokenizer.encode(text, add_special_tokens=not self.has_template).ids
        return self._encode_marked(text)

    def stream(
        self,
        prompt_ids: Sequence[int],
        produced_ids: Sequence[int] = (),
        chars_sent: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> AnswerStream:
        eos = frozenset() if ignore_eos else self.eos_ids
        return AnswerStream(self._decode, eos, stop, produced_ids, chars_sent)

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def close(self) -> None:
        """End the template's child process."""
        self._renderer.close()

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def _hide_control(self, content: str) -> str:
        content = content.replace(_MARK, "")
        if self._control is None:
            return content
        return self._control.sub(lambda found: found[0][:1] + _MARK + found[0][1:], content)

    def _encode_marked(self, text: str) -> list[int]:
        """Encode the template's own control words as such, and everything between them, unmarked, as plain text."""
        assert self._control is not None
        ids: list[int] = []
        if not self.has_template:
            ids += self._tokenizer.encode("").ids
        start = 0
        for found in self._control.finditer(text):
            ids += self._encode_plain(text[start : found.start()])
            ids.append(self._specials[found[0]])
            start = found.end()
        return ids + self._encode_plain(text[start:])

    def _encode_plain(self, text: str) -> list[int]:
        return self._plain.encode(text.replace(_MARK, ""), add_special_tokens=False).ids if text else []


def _added_tokens(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    return tokenizer.get_added_tokens_decoder()


def _template_of(loaded: Any) -> str | None:
    template = loaded.chat_template
    if isinstance(template, dict):
        template = template.get("default") or next(iter(template.values()), None)
    return template or None


def _eos_of(file: Path) -> set[int]:
    """``eos_token_id`` of a config file: a number, a list, null or absent."""
    if not file.is_file():
        return set()
    value = json.loads(file.read_bytes()).get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return {item for item in values if isinstance(item, int) and not isinstance(item, bool)}
