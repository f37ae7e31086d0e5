"""Whether rows are numbers at all. Asked only about the rows that led to nonsense, to see who made it."""

from __future__ import annotations

import math

from meshnet.domain.engine import Rows

NOT_FINITE = "nan"
"""The code of rows or logits that are no finite numbers."""
_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""All ones there: infinite or not a number (IEEE 754; bfloat16 is the upper half of a float32)."""


def is_finite(rows: Rows) -> bool:
    """Whether every element is a finite number. Little-endian, as rows are on the wire and on every machine we run."""
    data = memoryview(rows.data).cast("B")
    if rows.dtype == "float32":
        # Summed as doubles, which no sum of float32 overflows: not finite if and only if one of them is not.
        return math.isfinite(sum(data.cast("f")))
    mask = _EXPONENT[rows.dtype]
    return all(bits & mask != mask for bits in data.cast("H"))
