"""Names of the files of a stored model."""

from __future__ import annotations

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
EMBEDDING = "embedding.safetensors"
HEAD = "head.safetensors"

TOKENIZER_EXTRAS = (TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")
"""Copied beside tokenizer.json when the source has them."""


def layer_name(layer: int) -> str:
    """``layer-00007.safetensors``: five digits sort as numbers do."""
    return f"layer-{layer:05d}.safetensors"
