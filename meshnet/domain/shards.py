"""A shard: a contiguous range of transformer layers, inclusive and 0-based, printed ``0-14``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshnet.domain.errors import InvalidRequest

MAX_LAYERS = 4096
"""No published model has 1,000 layers; a larger number is a mistake or an attack, and would make huge tables."""

_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Layers ``start..end``, both inclusive."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < MAX_LAYERS:
            raise InvalidRequest(f"layers {self.start}-{self.end} are no range: 0 <= start <= end < {MAX_LAYERS}")

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer <= self.end

    def holds(self, start_layer: int, end_layer: int) -> bool:
        """Whether a hop over start_layer..end_layer can run on this shard."""
        return self.start <= start_layer <= end_layer <= self.end


def parse_shard(text: str) -> Shard:
    """``"0-14"`` or ``"7"`` -> Shard. Raises InvalidRequest naming the text."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is not a layer range; write it as 0-14.")
    start = int(match[1])
    return Shard(start, int(match[2]) if match[2] else start)


def format_layers(layers: Iterable[int]) -> str:
    """``{0, 1, 2, 7}`` -> ``"0-2, 7"``: gaps as people read them."""
    parts: list[list[int]] = []
    for layer in sorted(set(layers)):
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
