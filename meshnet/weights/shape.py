"""What a model's config.json says of its shape, read without torch and without trusting it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshnet.domain.errors import WeightsError
from meshnet.domain.shards import MAX_LAYERS
from meshnet.weights.families import Family, find_family

MAX_SIZE = 1 << 26
"""Bound on hidden, vocabulary and context sizes: 64 x today's largest, so that a typo cannot ask for terabytes."""

# Facts of the whole checkpoint that a nested text_config may leave to its wrapper.
_OUTER_KEYS = (
    "tie_word_embeddings",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
)
_LAYER_LISTS = ("layer_types", "layers_block_type")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``config`` is the text model's own config, no longer nested: what the store keeps."""

    family: Family
    n_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    ties_embeddings: bool
    quantization: str | None
    config: dict[str, Any] = field(repr=False)


def read_shape(file: Path) -> ModelShape:
    """Raises WeightsError naming the file and the key at fault, or the unsupported type."""
    return shape_of(read_json(file), str(file))


def shape_of(config: dict[str, Any], where: str) -> ModelShape:
    """The shape of an already read config; ``where`` names it in errors."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise WeightsError(f"{where} does not say model_type, so it is no model's config.")
    family = find_family(model_type)
    text = _text_config(config, family, where)
    n_layers = _layer_count(text, where)
    per_layer = text.get("layer_types")
    if isinstance(per_layer, list) and len(per_layer) != n_layers:
        raise WeightsError(f"{where}: num_hidden_layers is {n_layers}, but layer_types lists {len(per_layer)} layers.")
    tied = text.get("tie_word_embeddings")
    return ModelShape(
        family,
        n_layers,
        _size(text, "hidden_size", where),
        _size(text, "vocab_size", where),
        _size(text, "max_position_embeddings", where),
        tied if isinstance(tied, bool) else family.is_tied_by_default,
        _quantization(text),
        text,
    )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises WeightsError: missing, a Git LFS pointer, not JSON, not an object."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise WeightsError(f"{file.parent} has no {file.name}.") from None
    except OSError as error:
        raise WeightsError(f"Cannot read {file}: {error.strerror}.") from error
    refuse_lfs_pointer(file, data[:64])
    try:
        value = json.loads(data)
    except ValueError as error:
        raise WeightsError(f"{file} is not JSON ({error}); it may be cut short ({len(data)} bytes).") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{file} is not a JSON object.")
    return value


def refuse_lfs_pointer(file: Path, head: bytes) -> None:
    """Raises WeightsError when ``head`` (the file's first bytes) is the text Git LFS leaves in place of a file."""
    if head.startswith(b"version https://git-lfs"):
        raise WeightsError(
            f"{file} is a Git LFS pointer of {file.stat().st_size} bytes, not the file itself. "
            "Run `git lfs pull` in its folder."
        )


def _text_config(config: dict[str, Any], family: Family, where: str) -> dict[str, Any]:
    nested = config.get("text_config")
    if nested is None:
        text = dict(config)
    elif isinstance(nested, dict):
        outer = {key: config[key] for key in _OUTER_KEYS if config.get(key) is not None}
        text = {**nested, **outer}
    else:
        raise WeightsError(f"{where}: text_config is not an object.")
    text["model_type"] = family.model_type
    text["architectures"] = [family.architecture]
    return text


def _layer_count(text: dict[str, Any], where: str) -> int:
    lists = [text[key] for key in _LAYER_LISTS if isinstance(text.get(key), list)]
    if "num_hidden_layers" not in text and lists:
        text["num_hidden_layers"] = len(lists[0])
    value = text.get("num_hidden_layers")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LAYERS:
        found = "is missing" if value is None else f"is {value!r}"
        raise WeightsError(f"{where}: num_hidden_layers {found}; it must be a number from 1 to {MAX_LAYERS}.")
    return value


def _size(text: dict[str, Any], key: str, where: str) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        found = "is missing" if value is None else f"is {value!r}"
        raise WeightsError(f"{where}: {key} {found}; it must be a number from 1 to {MAX_SIZE}.")
    return value


def _quantization(text: dict[str, Any]) -> str | None:
    quantization = text.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    return str(quantization.get("quant_method", "unknown"))
