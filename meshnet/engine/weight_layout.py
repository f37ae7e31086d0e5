"""Which way round a matrix lies in memory, chosen by measuring.

``y = x @ W.T`` for one row of x is limited by how the CPU's BLAS walks W. For many shapes a W stored transposed is up
to twice as fast (and never other numbers than rounding), for some it is slower, and which depends on the library and
the machine: so each shape is timed once at load, a few milliseconds, and the better layout kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_REPEATS = 5
"""Timings of each layout per shape; the least counts, so a busy machine does not decide."""
_FLUSH_BYTES = 64 << 20
"""Written between timings, so that weights come from memory, as in a real step, and not from the cache: about 10 ms
each time. Should be more than the last cache of the CPU."""
_GAIN = 1.3
"""How much faster the transposed layout must be for one row: it costs about a tenth on batches of 4 to 16."""
_LEAST_ELEMENTS = 1 << 16
"""Smaller matrices sit in cache, where neither layout matters."""


def choose_layouts(modules: Iterable[nn.Module], clock: Callable[[], float] = time.perf_counter) -> None:
    """Store the weights of every nn.Linear on the CPU the way its shape runs fastest for one row."""
    chosen: dict[tuple[int, ...], bool] = {}
    done: set[int] = set()
    for module in modules:
        for linear in module.modules():
            if not isinstance(linear, nn.Linear) or linear.weight.device.type != "cpu":
                continue
            weight = linear.weight
            if weight.numel() < _LEAST_ELEMENTS or id(weight) in done:
                continue
            shape = tuple(weight.shape)
            if shape not in chosen:
                chosen[shape] = _is_faster_transposed(weight.data, clock)
            if chosen[shape]:
                linear.weight = nn.Parameter(weight.data.t().contiguous().t(), requires_grad=False)
            done.add(id(linear.weight))


@torch.inference_mode()
def _is_faster_transposed(weight: Tensor, clock: Callable[[], float]) -> bool:
    row = torch.ones((1, 1, weight.shape[1]), dtype=weight.dtype)
    transposed = weight.t().contiguous().t()
    flush = torch.zeros(_FLUSH_BYTES, dtype=torch.uint8)
    best = [float("inf"), float("inf")]
    for _ in range(_REPEATS):
        for index, matrix in enumerate((weight, transposed)):
            flush += 1
            start = clock()
            F.linear(row, matrix)
            best[index] = min(best[index], clock() - start)
    return best[0] > _GAIN * best[1]
