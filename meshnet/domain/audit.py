"""Whether two holders of the same layers compute the same: fixed public rows in, outputs compared, a third one decides.

The rows are public, so an audit tells nobody anything of a chat; and fixed, so it can be done by hand with curl.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from struct import pack, unpack

from meshnet.domain.engine import ITEMSIZE, Rows

PROBE_ROWS = 4
"""Enough for attention to look back over; a pass over so few delays a stream by one step."""
PROBE_TOKENS = (1, 2, 3, 4)
"""What a head is asked for: its layers begin with token ids."""
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of two honest machines, relative to the largest element. Rounding differs between processors:
about 2^-24, 2^-11 and 2^-8 an operation, amplified over tens of layers. A wrong weight or layer differs by 0.1 to 1."""


def probe_rows(hidden_size: int, dtype: str) -> Rows:
    """PROBE_ROWS rows of numbers in [-1, 1), the same everywhere: SHA-256 of "probe <n>", 16 bits a number."""
    count = PROBE_ROWS * hidden_size
    stream = b"".join(hashlib.sha256(b"probe %d" % n).digest() for n in range(count // 16 + 1))
    numbers = [int.from_bytes(stream[at : at + 2], "little") / 32768 - 1 for at in range(0, 2 * count, 2)]
    return Rows(dtype, (PROBE_ROWS, hidden_size), _encoded(numbers, dtype))


def difference(a: Rows, b: Rows) -> float:
    """Largest |a - b| over the largest |a|; infinite where the shapes differ or anything is no number."""
    if a.shape != b.shape or a.dtype != b.dtype or a.size_bytes != len(a.data) or b.size_bytes != len(b.data):
        return inf
    left, right = _decoded(a), _decoded(b)
    if not (isfinite(sum(left)) and isfinite(sum(right))):
        return inf
    largest = max(map(abs, left), default=0.0) or 1.0
    return max((abs(x - y) for x, y in zip(left, right, strict=True)), default=0.0) / largest


@dataclass(frozen=True, slots=True)
class Verdict:
    """``agree``: all outputs are alike. Else ``culprit`` is the one that two others contradict, None while only two
    were heard or no two of three agree."""

    agree: bool
    culprit: str | None
    worst: float


def judge(outputs: Mapping[str, Rows], tolerance: float) -> Verdict:
    """Of two or three nodes' outputs for the same rows and layers."""
    names = list(outputs)
    apart = {(a, b): difference(outputs[a], outputs[b]) for n, a in enumerate(names) for b in names[n + 1 :]}
    worst = max(apart.values(), default=0.0)
    if worst <= tolerance:
        return Verdict(True, None, worst)
    friends = {name: sum(1 for pair, far in apart.items() if name in pair and far <= tolerance) for name in names}
    alone = [name for name, count in friends.items() if count == 0]
    return Verdict(False, alone[0] if len(names) > 2 and len(alone) == 1 else None, worst)


def _encoded(numbers: list[float], dtype: str) -> bytes:
    if dtype == "float16":
        return pack(f"<{len(numbers)}e", *numbers)
    single = pack(f"<{len(numbers)}f", *numbers)
    if dtype == "float32":
        return single
    return b"".join(single[at + 2 : at + 4] for at in range(0, len(single), 4))  # bfloat16: its upper half


def _decoded(rows: Rows) -> list[float]:
    data = bytes(rows.data)
    if rows.dtype == "float32":
        return array("f", data).tolist()
    if rows.dtype == "float16":
        return list(unpack(f"<{len(data) // ITEMSIZE['float16']}e", data))
    wide = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    return array("f", wide).tolist()
