"""What a stored model costs in memory, layer by layer, from its manifest and config alone: the tracker has no torch.

The sizes of the files are those of the tensors; the config says what a layer keeps per token. Checked against the
engine's own figures by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshnet.domain.budget import ModelCost
from meshnet.domain.engine import ITEMSIZE
from meshnet.domain.errors import WeightsError
from meshnet.domain.ids import ModelKey, Revision
from meshnet.weights.manifest import FileEntry, Manifest

LINEAR_ATTENTION = "linear_attention"
STATE_ITEMSIZE = 4
"""The recurrent state of linear attention is float32 whatever the dtype."""
LARGEST = 1 << 24
"""Heads, or elements of one: a thousand times what models have, and products of five of them are still figures."""
STORED_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
QUANTIZED_BYTES = {"fp8": 1.0, "mxfp4": 0.53125}
"""Bytes of an element as stored; mxfp4 has 4 bits and a scale byte for each 32. Attention, which stays 16 bits, is
counted as if quantized too: the cost comes out high, never low."""


def model_cost(manifest: Manifest, config: Mapping[str, Any], dtype: str) -> ModelCost:
    """Raises WeightsError naming a config that does not say how large its attention is, or says nonsense."""
    itemsize = ITEMSIZE[dtype]
    growth = itemsize / _stored_bytes(manifest)
    layers = sorted((entry for entry in manifest.files if entry.kind == "layer"), key=lambda entry: entry.layer or 0)
    kinds = _layer_types(config, manifest.n_layers)
    token_bytes = 2 * _kv_size(manifest, config) * itemsize
    state_bytes = _state_bytes(config, itemsize) if LINEAR_ATTENTION in kinds else 0
    return ModelCost(
        ModelKey(manifest.model_key),
        Revision(manifest.revision),
        dtype,
        manifest.context_length,
        tuple(int(entry.size_bytes * growth) for entry in layers),
        tuple(0 if kind == LINEAR_ATTENTION else token_bytes for kind in kinds),
        # Embedding and head are not quantized by any scheme the store takes.
        embedding_bytes=_file(manifest, "embedding").size_bytes * itemsize // _plain_bytes(manifest),
        final_bytes=_file(manifest, "head").size_bytes * itemsize // _plain_bytes(manifest),
        tied=manifest.tied_embeddings,
        state_bytes_per_session=tuple(state_bytes if kind == LINEAR_ATTENTION else 0 for kind in kinds),
    )


def _stored_bytes(manifest: Manifest) -> float:
    if manifest.quantization is not None:
        return QUANTIZED_BYTES.get(manifest.quantization, 1.0)
    return float(_plain_bytes(manifest))


def _plain_bytes(manifest: Manifest) -> int:
    return int(STORED_BYTES.get(manifest.dtype, 2.0))


def _file(manifest: Manifest, kind: str) -> FileEntry:
    return next(entry for entry in manifest.files if entry.kind == kind)


def _layer_types(config: Mapping[str, Any], n_layers: int) -> list[str]:
    named = config.get("layer_types")
    if not isinstance(named, list) or len(named) != n_layers:
        return [""] * n_layers
    return [kind if isinstance(kind, str) else "" for kind in named]


def _kv_size(manifest: Manifest, config: Mapping[str, Any]) -> int:
    """Elements of a layer's keys for one token."""
    heads = _number(config, "num_attention_heads", manifest.model_key)
    defaults = {"num_key_value_heads": heads, "head_dim": manifest.hidden_size // heads}
    kv_heads, head_dim = (
        _number(config, name, manifest.model_key) if config.get(name) else default for name, default in defaults.items()
    )
    return kv_heads * head_dim


def _state_bytes(config: Mapping[str, Any], itemsize: int) -> int:
    """A gated delta net keeps the last columns of its convolution and one matrix per value head."""
    names = ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads", "conv_kernel_dim")
    key_dim, value_dim, key_heads, value_heads, kernel = (
        _number(config, f"linear_{name}", "the config") for name in names
    )
    channels = 2 * key_dim * key_heads + value_dim * value_heads
    return channels * kernel * itemsize + value_heads * key_dim * value_dim * STATE_ITEMSIZE


def _number(config: Mapping[str, Any], name: str, where: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        said = value if isinstance(value, (int, float)) else type(value).__name__
        raise WeightsError(f"{where}: {name} is {str(said)[:64]}; it must be a whole number from 1 to {LARGEST}.")
    return value
