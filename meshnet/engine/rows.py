"""Hidden rows between torch and the wire, without copying where memory allows."""

from __future__ import annotations

import torch
from torch import Tensor

from meshnet.domain.engine import ITEMSIZE, Rows
from meshnet.domain.errors import InvalidRequest

_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


def to_rows(tensor: Tensor) -> Rows:
    """(rows, hidden) -> Rows over the same memory (a CPU tensor that is contiguous), little-endian."""
    flat = tensor.detach().to("cpu").contiguous()
    data = flat.reshape(-1).view(torch.uint8).numpy().data
    return Rows(_NAMES[flat.dtype], (flat.shape[0], flat.shape[1]), data)


def from_rows(rows: Rows, dtype: str, hidden_size: int) -> Tensor:
    """Rows -> (rows, hidden), over the same memory when it is writable. Raises InvalidRequest for another dtype,
    width or length."""
    count, width = rows.shape
    data = memoryview(rows.data)
    if rows.dtype != dtype or width != hidden_size or data.nbytes != count * width * ITEMSIZE[dtype]:
        raise InvalidRequest(
            f"rows of {rows.dtype} {rows.shape} in {data.nbytes} bytes; this shard takes {dtype} rows of {hidden_size}."
        )
    if count == 0:
        return torch.empty((0, width), dtype=_TORCH[dtype])
    writable = data if not data.readonly else bytearray(data)
    return torch.frombuffer(writable, dtype=_TORCH[dtype]).view(count, width)
