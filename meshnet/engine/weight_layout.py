"""How a matrix lies in memory, chosen by measuring.

``y = x @ W.T`` for a few rows is limited by how the CPU's library walks W. Stored transposed, some shapes run twice
as fast for one row; packed by oneDNN, some run twice as fast for eight rows and a fifth faster for a prefill. Which
holds depends on shape, library and machine, so each shape is timed once at load and the best layout kept. The numbers
are the same up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layout = Literal["stored", "transposed", "packed"]

_REPEATS = 5
"""Timings of each layout per shape; the least counts, so a busy machine does not decide."""
_FLUSH_BYTES = 64 << 20
"""Written between timings, so that weights come from memory, as in a real step, and not from the cache: about 10 ms
each time. Should be more than the last cache of the CPU."""
_BATCH_ROWS = 8
_BATCH_WEIGHT = 0.5
"""A layout's cost is its time for one row plus this much of its time for eight: a lone stream counts as much as four
tokens of a batch. Raising it favours throughput over a lone stream's speed."""
_GAIN = 1.1
"""How much cheaper than as stored a layout must be: closer is noise."""
_LEAST_ELEMENTS = 1 << 16
"""Smaller matrices sit in cache, where no layout matters."""
_PACK_ROWS = 64
"""The batch oneDNN packs for. Its layout for 8 rows and more also serves one row well; that for 1 does not."""


class PackedLinear(nn.Module):
    """A projection whose weight only oneDNN can read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = _pack(linear.weight.data)
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, rows: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")


class Fitter:
    """Lays out the projections of one shard; a shape is timed when it is first met."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._chosen: dict[tuple[int, ...], Layout] = {}

    def fit_children(self, module: nn.Module) -> None:
        """Every nn.Linear below ``module``, in place."""
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, self.fit(child))
            else:
                self.fit_children(child)

    def fit(self, linear: nn.Linear) -> nn.Module:
        """The same projection, laid out the way this machine runs it best. Only float32 on a CPU is touched."""
        weight = linear.weight.data
        if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.numel() < _LEAST_ELEMENTS:
            return linear
        shape = tuple(weight.shape)
        if shape not in self._chosen:
            self._chosen[shape] = fastest_layout(weight, self._clock)
        match self._chosen[shape]:
            case "packed":
                return PackedLinear(linear)
            case "transposed":
                linear.weight = nn.Parameter(_transposed(weight), requires_grad=False)
        return linear


@torch.inference_mode()
def fastest_layout(weight: Tensor, clock: Callable[[], float]) -> Layout:
    """The layout of least cost (see _BATCH_WEIGHT) for this matrix on this machine."""
    candidates: dict[Layout, Any] = {"stored": weight, "transposed": _transposed(weight)}
    if _can_pack():
        candidates["packed"] = _pack(weight)
    flush = torch.zeros(_FLUSH_BYTES, dtype=torch.uint8)
    costs: dict[Layout, float] = dict.fromkeys(candidates, 0.0)
    for n_rows, importance in ((1, 1.0), (_BATCH_ROWS, _BATCH_WEIGHT)):
        rows = torch.ones((1, n_rows, weight.shape[1]))
        best = dict.fromkeys(candidates, float("inf"))
        for _ in range(_REPEATS):
            for layout, matrix in candidates.items():
                flush += 1
                start = clock()
                _product(rows, layout, matrix)
                best[layout] = min(best[layout], clock() - start)
        for layout in candidates:
            costs[layout] += importance * best[layout]
    winner = min(costs, key=lambda layout: costs[layout])
    return winner if costs["stored"] > _GAIN * costs[winner] else "stored"


def _product(rows: Tensor, layout: Layout, matrix: Tensor) -> Tensor:
    if layout == "packed":
        return torch.ops.mkldnn._linear_pointwise(rows, matrix, None, "none", [], "")
    return F.linear(rows, matrix)


def _transposed(weight: Tensor) -> Tensor:
    """The same (out, in) matrix over memory that runs the other way."""
    return weight.t().contiguous().t()


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)


def _can_pack() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
