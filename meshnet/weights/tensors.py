"""The safetensors file format, read and written as bytes: no numpy (bf16 and fp8 have no dtype there), no torch.

Format: 8 bytes little-endian header length, a JSON header ``{name: {dtype, shape, data_offsets}}``, then the
tensors' raw bytes, without gaps. Offsets count from the end of the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshnet.domain.errors import WeightsError
from meshnet.weights.shape import refuse_lfs_pointer

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound on its header: a larger number is damage, and would be read into memory."""
COPY_BYTES = 1 << 20
"""One read while copying: what a split holds in memory at a time."""
_ALIGNMENT = 8

ITEM_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _HeaderEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor's bytes lie: ``size_bytes`` from ``offset`` of ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    size_bytes: int

    def read(self) -> Iterator[bytes]:
        """Its bytes, a piece at a time. Raises WeightsError if the file ends before them."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            left = self.size_bytes
            while left:
                piece = stream.read(min(left, COPY_BYTES))
                if not piece:
                    raise WeightsError(f"{self.file} ended {left} bytes before the end of tensor {self.name}.")
                left -= len(piece)
                yield piece


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: ``pieces`` yields exactly its bytes, and is called once, when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[bytes | memoryview]]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Written:
    size_bytes: int
    sha256: str


def read_tensors(file: Path) -> list[Tensor]:
    """Every tensor of a safetensors file. Raises WeightsError: missing, a Git LFS pointer, no header, or cut short
    (with the expected and found size)."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(64)
            refuse_lfs_pointer(file, head)
            header_bytes = int.from_bytes(head[:8], "little")
            if len(head) < 8 or not 2 <= header_bytes <= MAX_HEADER_BYTES:
                raise WeightsError(f"{file} is no safetensors file: its first 8 bytes are no header length.")
            stream.seek(8)
            header = stream.read(header_bytes)
    except OSError as error:
        raise WeightsError(f"Cannot read {file}: {error.strerror}.") from error
    if len(header) < header_bytes:
        raise WeightsError(f"{file} is cut short: expected more than {8 + header_bytes} bytes, found {size}.")
    tensors = _parse_header(file, header)
    expected = max((t.offset + t.size_bytes for t in tensors), default=8 + header_bytes)
    if size != expected:
        what = "cut short" if size < expected else "longer than its header says"
        raise WeightsError(f"{file} is {what}: expected {expected} bytes, found {size}.")
    return tensors


def write_tensors(
    file: Path, tensors: Sequence[NewTensor], copied: Callable[[int], None] = lambda n_bytes: None
) -> Written:
    """Write a safetensors file, a piece at a time, hashing as it goes. Same tensors, same bytes, on any machine.

    ``copied`` hears of every piece. The file is on disk (fsync) when this returns.
    """
    # Widest first keeps every tensor aligned without padding; names make the order one.
    ordered = sorted(tensors, key=lambda t: (-ITEM_BITS[t.dtype], t.name))
    header = _header(ordered)
    digest = hashlib.sha256(header)
    size = len(header)
    with file.open("wb") as stream:
        stream.write(header)
        for tensor in ordered:
            written = 0
            for piece in tensor.pieces():
                stream.write(piece)
                digest.update(piece)
                n_bytes = memoryview(piece).nbytes
                written += n_bytes
                copied(n_bytes)
            if written != tensor.size_bytes:
                raise WeightsError(
                    f"Tensor {tensor.name} has {written} bytes, but its shape {tensor.shape} needs {tensor.size_bytes}."
                )
            size += written
        stream.flush()
        os.fsync(stream.fileno())
    return Written(size, digest.hexdigest())


def _header(ordered: Sequence[NewTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        end = offset + tensor.size_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _parse_header(file: Path, header: bytes) -> list[Tensor]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(value, type=_HeaderEntry) for name, value in raw.items()}
    except msgspec.DecodeError as error:
        raise WeightsError(f"{file} has a damaged header: {error}.") from error
    base = 8 + len(header)
    tensors = []
    expected_start = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, end = entry.data_offsets
        if entry.dtype not in ITEM_BITS:
            raise WeightsError(f"{file}: tensor {name} has dtype {entry.dtype!r}, which meshnet does not know.")
        size = math.prod(entry.shape) * ITEM_BITS[entry.dtype] // 8
        if min(entry.shape, default=0) < 0 or start != expected_start or end - start != size:
            raise WeightsError(f"{file} has a damaged header: tensor {name} lies at {start}-{end}, needs {size} bytes.")
        expected_start = end
        tensors.append(Tensor(name, entry.dtype, tuple(entry.shape), file, base + start, size))
    return tensors
