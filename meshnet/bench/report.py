"""Figures as people quote them: medians over rounds, with the machine and versions they were made on."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import psutil

from meshnet import __version__


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of the rounds."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Round by round, since the machine's speed drifts between rounds: the spread of the quotients."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def machine() -> dict[str, str | int]:
    """What the figures were made on."""
    return {
        "cpu": _cpu(),
        "cores": psutil.cpu_count() or 0,
        "ram_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "meshnet": __version__,
        **{name: _version(name) for name in ("torch", "transformers", "aiohttp")},
    }


def _cpu() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 (a pseudo-file)
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
