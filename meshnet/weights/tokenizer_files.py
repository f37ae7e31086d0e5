"""The tokenizer and chat template of a Hugging Face folder, as files: which to keep, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshnet.domain.errors import WeightsError
from meshnet.weights import layout
from meshnet.weights.shape import read_json

SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json")
"""Older tokenizer files: transformers can make a tokenizer.json of them (``python -m meshnet.engine tokenizer``)."""


def find_tokenizer(folder: Path) -> Path:
    """tokenizer.json of the folder, checked to be one. Raises WeightsError saying what to do without."""
    file = folder / layout.TOKENIZER
    if not file.is_file():
        raise WeightsError(
            f"{folder} has no tokenizer: no {layout.TOKENIZER}. Copy the one the model was trained with."
        )
    if not isinstance(read_json(file).get("model"), dict):
        raise WeightsError(f"{file} is no tokenizer: it has no model.")
    return file


def has_slow_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in SLOW_TOKENIZERS)


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Name in the store -> bytes. The chat template, wherever the folder keeps it, becomes ``chat_template.jinja``."""
    files = {layout.TOKENIZER: find_tokenizer(folder).read_bytes()}
    for name in layout.TOKENIZER_EXTRAS:
        if (folder / name).is_file():
            files[name] = (json.dumps(_without_template(read_json(folder / name)), indent=2) + "\n").encode()
    template = _chat_template(folder)
    if template is not None:
        files[layout.CHAT_TEMPLATE] = template.encode()
    return files


def _without_template(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "chat_template"}


def _chat_template(folder: Path) -> str | None:
    """A file of its own first, then tokenizer_config's (a text, or a list of named ones whose ``default`` counts)."""
    own = folder / layout.CHAT_TEMPLATE
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    for name in ("chat_template.json", layout.TOKENIZER_CONFIG):
        if (folder / name).is_file():
            template = _default_template(read_json(folder / name).get("chat_template"))
            if template is not None:
                return template
    return None


def _default_template(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, Mapping)}
        template = named.get("default", next(iter(named.values()), None))
        return template if isinstance(template, str) else None
    return None
