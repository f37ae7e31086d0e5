"""Quantized checkpoints -> plain tensors, a file at a time, where the format is exactly known.

``mxfp4`` (gpt_oss): two 4-bit floats a byte, groups of 32 share a power of two. ``fp8``: 8-bit floats, blocks share a
scale. Others (AWQ, GPTQ, bitsandbytes, …) are refused by name: their layout depends on kernels that are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from meshnet.domain.errors import WeightsError

_BLOCKS, _SCALES, _SCALE_INV = "_blocks", "_scales", "_scale_inv"
_FP8_BLOCK = (128, 128)
"""Rows and columns that share a scale where the config does not say; all published fp8 checkpoints use it."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The sixteen values of a 4-bit float (Open Compute Project, Microscaling Formats 1.0, table for E2M1)."""
_E8M0_BIAS = 127


def require_known(quantization: Mapping[str, Any] | None) -> None:
    """Raises WeightsError for a quantization that cannot be undone here, before anything is read."""
    method = _method(quantization)
    if method not in (None, "mxfp4", "fp8"):
        raise WeightsError(
            f"This model is quantized with {method}, which meshnet cannot undo. Supported: mxfp4, fp8, "
            "unquantized safetensors, and GGUF files.",
            code="unsupported_model",
        )


def dequantize(
    tensors: dict[str, Tensor], quantization: Mapping[str, Any] | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors of one file named as unquantized ones. Raises WeightsError if parts are missing."""
    match _method(quantization):
        case "mxfp4":
            return _undo_mxfp4(tensors, dtype)
        case "fp8":
            block = (quantization or {}).get("weight_block_size") or _FP8_BLOCK
            return _undo_fp8(tensors, dtype, (int(block[0]), int(block[1])))
    return tensors


def _method(quantization: Mapping[str, Any] | None) -> str | None:
    return None if not quantization else str(quantization.get("quant_method", "unknown"))


def _undo_mxfp4(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith((_BLOCKS, _SCALES))}
    for name, blocks in tensors.items():
        if name.endswith(_BLOCKS):
            target = name.removesuffix(_BLOCKS)
            plain[target] = _mxfp4_matrix(blocks, _partner(tensors, target + _SCALES), dtype)
    return plain


def _mxfp4_matrix(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """(experts, rows, groups, 16) bytes and (experts, rows, groups) exponents -> (experts, columns, rows): transformers
    keeps these matrices with their inputs first."""
    values = torch.tensor(_E2M1, dtype=dtype)
    experts, rows, groups, width = blocks.shape
    matrix = torch.empty((experts, groups * width * 2, rows), dtype=dtype)
    for expert in range(experts):  # One at a time: looking values up takes 64-bit indices.
        halves = torch.stack([blocks[expert] & 15, blocks[expert] >> 4], -1).long()
        numbers = values[halves].flatten(-2)
        exponents = scales[expert].to(torch.int32) - _E8M0_BIAS
        matrix[expert] = torch.ldexp(numbers, exponents[..., None]).reshape(rows, -1).t()
    return matrix


def _undo_fp8(tensors: dict[str, Tensor], dtype: torch.dtype, block: tuple[int, int]) -> dict[str, Tensor]:
    extra = (_SCALE_INV, ".input_scale", ".activation_scale")
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith(extra)}
    for name, scale in tensors.items():
        if name.endswith(_SCALE_INV):
            target = name.removesuffix(_SCALE_INV)
            plain[target] = _fp8_matrix(_partner(tensors, target), scale.float(), block).to(dtype)
    return plain


def _fp8_matrix(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    if scale.dim() >= 2:
        scale = scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
        scale = scale[..., : weight.shape[-2], : weight.shape[-1]]
    return weight.float() * scale


def _partner(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise WeightsError(f"A quantized tensor has no {name} beside it. Pull the model again.")
    return tensors[name]
