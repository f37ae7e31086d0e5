"""The header of a GGUF file, read without gguf or numpy: enough to refuse a bad file before any work.

Format (versions 2 and 3, little-endian): magic ``GGUF``, version, tensor count, key count, keys with typed values,
then per tensor name, shape, type and offset; data starts at the next multiple of ``general.alignment``.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet.domain.errors import WeightsError
from meshnet.weights.shape import refuse_lfs_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_COUNT = 1 << 24
"""Bound on tensors, keys and array lengths: 60 x today's largest vocabulary. Beyond it the header is damaged."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml tensor type -> (name, elements a block, bytes a block).
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``values`` holds scalars and strings; arrays are left out (their lengths stand in ``lengths``)."""

    architecture: str
    values: dict[str, Any]
    lengths: dict[str, int]
    n_tensors: int
    n_elements: int
    type_names: tuple[str, ...]
    """Tensor types by how many elements they hold, most first: ``("Q4_1", "Q8_0", "F32")``."""

    @property
    def float32_bytes(self) -> int:
        """What the tensors take once dequantized."""
        return 4 * self.n_elements


def read_gguf_header(file: Path) -> GgufHeader:
    """Raises WeightsError naming the file: magic, version, damage, or cut short (expected and found size)."""
    size = 0
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(64)
            refuse_lfs_pointer(file, head)
            if head[:4] != MAGIC:
                raise WeightsError(
                    f"{file} is no GGUF file: it starts with {head[:4]!r}, not {MAGIC!r} ({size} bytes found)."
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(file, data, size)
    except OSError as error:
        raise WeightsError(f"Cannot read {file}: {error.strerror}.") from error
    except (struct.error, UnicodeDecodeError) as error:
        raise WeightsError(f"{file} is cut short or damaged inside its header ({size} bytes found).") from error


class _Cursor:
    """Reads forward; struct.error at the end of the file."""

    def __init__(self, data: mmap.mmap, file: Path) -> None:
        self.data, self.file, self.position = data, file, 4

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def count(self, what: str) -> int:
        value = self.scalar("Q")
        if value > MAX_COUNT:
            raise WeightsError(f"{self.file} is damaged: its header says {value} {what}.")
        return value

    def text(self) -> str:
        length = self.count("characters")
        if self.position + length > len(self.data):
            raise struct.error("string beyond the end")
        raw = self.data[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8")

    def skip(self, kind: int) -> None:
        if kind == _STRING:
            length = self.count("characters")
            self.position += length
        elif kind in _SCALARS:
            self.position += struct.calcsize("<" + _SCALARS[kind])
        else:
            raise WeightsError(f"{self.file} is damaged: a value of its header has unknown type {kind}.")


def _parse(file: Path, data: mmap.mmap, size: int) -> GgufHeader:
    cursor = _Cursor(data, file)
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise WeightsError(f"{file} is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are supported.")
    n_tensors, n_keys = cursor.count("tensors"), cursor.count("keys")
    values, lengths = _read_keys(cursor, n_keys)
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str):
        raise WeightsError(f"{file} does not say general.architecture.")
    elements: dict[str, int] = {}
    end_of_data = 0
    for _ in range(n_tensors):
        kind, n_elements, end = _read_tensor(cursor)
        elements[kind] = elements.get(kind, 0) + n_elements
        end_of_data = max(end_of_data, end)
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise WeightsError(f"{file} is damaged: its alignment is {alignment!r}.")
    expected = -(-cursor.position // alignment) * alignment + end_of_data
    if size < expected:
        raise WeightsError(f"{file} is cut short: expected {expected} bytes, found {size}.")
    by_share = tuple(sorted(elements, key=lambda kind: -elements[kind]))
    return GgufHeader(architecture, values, lengths, n_tensors, sum(elements.values()), by_share)


def _read_keys(cursor: _Cursor, n_keys: int) -> tuple[dict[str, Any], dict[str, int]]:
    values: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(n_keys):
        key, kind = cursor.text(), cursor.scalar("I")
        if kind == _ARRAY:
            item_kind, length = cursor.scalar("I"), cursor.count("array items")
            for _ in range(length):
                cursor.skip(item_kind)
                if cursor.position > len(cursor.data):
                    raise struct.error("array beyond the end")
            lengths[key] = length
        elif kind == _STRING:
            values[key] = cursor.text()
        elif kind in _SCALARS:
            values[key] = cursor.scalar(_SCALARS[kind])
        else:
            raise WeightsError(f"{cursor.file} is damaged: key {key!r} has unknown type {kind}.")
    return values, lengths


def _read_tensor(cursor: _Cursor) -> tuple[str, int, int]:
    """Type name, elements and where its data ends, counted from the start of all data."""
    name, n_dimensions = cursor.text(), cursor.scalar("I")
    if not 0 <= n_dimensions <= 4:
        raise WeightsError(f"{cursor.file} is damaged: tensor {name!r} has {n_dimensions} dimensions.")
    n_elements = math.prod(cursor.scalar("Q") for _ in range(n_dimensions))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in _TYPES:
        raise WeightsError(f"{cursor.file}: tensor {name!r} has type {kind}, which meshnet does not know.")
    type_name, block_elements, block_bytes = _TYPES[kind]
    return type_name, n_elements, offset + n_elements // block_elements * block_bytes
