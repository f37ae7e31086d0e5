from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meshnet.engine.weight_layout import Fitter, PackedLinear, fastest_layout

ROUNDS = 5


def _clock(one_row: list[float], batch: list[float]) -> Callable[[], float]:
    """A clock on which the layouts, in turn, take these seconds: for one row, then for eight."""

    def ticks() -> Iterator[float]:
        now = 0.0
        for times in (one_row, batch):
            for _ in range(ROUNDS):
                for seconds in times:
                    yield now
                    now += seconds
                    yield now

    iterator = ticks()
    return lambda: next(iterator)


WEIGHT = torch.randn(512, 256, generator=torch.Generator().manual_seed(1))

needs_packing = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@needs_packing
@pytest.mark.parametrize(
    ("one_row", "batch", "expected"),
    [
        ([2.0, 1.0, 1.9], [2.0, 2.2, 2.0], "transposed"),
        ([2.0, 1.0, 1.2], [2.0, 2.2, 1.0], "packed"),
        ([1.0, 2.0, 2.0], [1.0, 2.0, 2.0], "stored"),
        ([1.0, 0.98, 1.0], [1.0, 1.0, 0.95], "stored"),
    ],
)
def test_the_layout_of_least_cost_is_kept(one_row: list[float], batch: list[float], expected: str) -> None:
    assert fastest_layout(WEIGHT, _clock(one_row, batch)) == expected


@needs_packing
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("one_row", [[2.0, 1.0, 9.0], [2.0, 9.0, 1.0], [1.0, 9.0, 9.0]])
@pytest.mark.parametrize("rows", [1, 3, 8, 70])
def test_every_layout_gives_the_same_numbers(has_bias: bool, one_row: list[float], rows: int) -> None:
    linear = nn.Linear(256, 512, bias=has_bias).requires_grad_(False)
    x = torch.randn(1, rows, 256)
    expected = F.linear(x, linear.weight.clone(), linear.bias)
    with torch.inference_mode():
        found = Fitter(_clock(one_row, one_row)).fit(linear)(x)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_each_shape_is_timed_once_and_small_or_half_ones_never() -> None:
    def never() -> float:
        raise AssertionError("timed")

    small, half = nn.Linear(8, 8), nn.Linear(512, 512).bfloat16()
    assert Fitter(never).fit(small) is small
    assert Fitter(never).fit(half) is half


@needs_packing
def test_projections_below_a_module_are_exchanged() -> None:
    module = nn.Sequential(nn.Linear(256, 512), nn.Sequential(nn.Linear(256, 512), nn.SiLU())).requires_grad_(False)
    times = [9.0, 9.0, 1.0]
    Fitter(_clock(times, times)).fit_children(module)
    assert [type(m) for m in module.modules() if isinstance(m, nn.Linear | PackedLinear)] == [PackedLinear] * 2
