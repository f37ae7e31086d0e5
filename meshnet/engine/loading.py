"""Layer files -> the parameters of a model built on meta.

Only the files asked for are read, each tensor straight into memory of its own (no mapping: a file replaced under a
running node can do no harm, and resident memory is what it says). Keys go through transformers' own conversion
(experts saved one by one become the fused tensors its modules hold), a layer at a time, so that the peak is the
shard and one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from meshnet.domain.errors import WeightsError
from meshnet.engine.dequantize import dequantize
from meshnet.weights.tensors import read_tensors

Opener = Callable[[Path], BinaryIO]
"""Opens a file for reading bytes; a test hands in one that counts."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def open_bytes(path: Path) -> BinaryIO:
    return path.open("rb", buffering=0)


def read_file(path: Path, opener: Opener = open_bytes) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, as stored. Raises WeightsError naming the file."""
    found: dict[str, Tensor] = {}
    tensors = read_tensors(path)
    try:
        with opener(path) as stream:
            for entry in tensors:
                if entry.dtype not in _DTYPES:
                    raise WeightsError(f"{path}: tensor {entry.name} has dtype {entry.dtype}, which torch cannot read.")
                raw = torch.empty(entry.size_bytes, dtype=torch.uint8)
                stream.seek(entry.offset)
                _read_into(stream, raw.numpy().data, path, entry.name)
                found[entry.name] = raw.view(_DTYPES[entry.dtype]).view(entry.shape)
    except OSError as error:
        raise WeightsError(f"Cannot read {path}: {error.strerror}.") from error
    return found


def _read_into(stream: BinaryIO, target: memoryview, path: Path, name: str) -> None:
    done = 0
    while done < len(target):
        count = stream.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise WeightsError(f"{path} ended {len(target) - done} bytes before the end of tensor {name}.")
        done += count


def load_files(
    model: PreTrainedModel,
    paths: Iterable[Path],
    dtype: torch.dtype,
    device: torch.device,
    opener: Opener = open_bytes,
    quantization: Mapping[str, Any] | None = None,
) -> None:
    """Put the tensors of ``paths`` into the model, converted to ``dtype``. Raises WeightsError for tensors that fit
    no parameter."""
    transformers_logging.disable_progress_bar()
    config = LoadStateDictConfig(
        dtype=dtype,
        device_map={"": device},
        dtype_plan=model._get_dtype_plan(dtype),
        weight_mapping=get_model_conversion_mapping(model),  # type: ignore[arg-type]
    )
    for path in paths:
        tensors = dequantize(read_file(path, opener), quantization, dtype)
        info, _ = convert_and_load_state_dict_in_model(model, tensors, config)
        wrong = {*info.unexpected_keys, *(str(key) for key in info.mismatched_keys), *info.conversion_errors}
        wrong -= {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        if wrong or info.error_msgs:
            names = ", ".join(sorted(wrong)[:3]) or info.error_msgs[0]
            raise WeightsError(f"{path} does not fit this {model.config.model_type} model: {names}.")


def require_loaded(module: nn.Module, what: str) -> None:
    """Raises WeightsError if any parameter or buffer of ``module`` was left without values."""
    left = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if left:
        raise WeightsError(f"The weights of {what} lack {', '.join(left[:3])} ({len(left)} tensors). Pull it again.")
