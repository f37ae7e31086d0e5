"""The wall clock of a daemon, and the steady one by which it signs and checks what others sign.

For tests the wall clock can be wrong: by as many seconds as the file ``MESHNET_CLOCK`` says, looked at anew each time,
so that it can jump while the daemon runs. Honoured only with ``MESHNET_TESTING=1``. Ages and deadlines do not come from
here: they are by ``time.monotonic``, which cannot jump, but stands still while the machine sleeps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshnet.domain.errors import StartError

log = logging.getLogger(__name__)

DRIFT_S = 5.0
"""Between two looks, heartbeats apart: more is a jump of the clock, less is a clock that is kept right."""
VARIABLE, SWITCH = "MESHNET_CLOCK", "MESHNET_TESTING"


class SteadyClock:
    """Unix seconds that do not jump with the system's clock but follow its drift. Whoever finds that others go by
    another time may ``settle``: a clock that was wrong at the start and set right since is then taken. ``now`` goes on
    while the machine sleeps: ``seconds_since_boot``."""

    def __init__(self, wall: Callable[[], float], now: Callable[[], float]) -> None:
        self._wall = wall
        self._now = now
        self._base = wall() - now()
        self._is_held = False

    def __call__(self) -> float:
        jump_s = self.jump_s()
        if abs(jump_s) <= DRIFT_S:
            self._base += jump_s
        return self._base + self._now()

    def jump_s(self) -> float:
        """How far ahead of us the system's clock is; negative: behind."""
        return self._wall() - self._now() - self._base

    def settle(self) -> bool:
        """Take the system's time; whether that is another."""
        jump_s = self.jump_s()
        if abs(jump_s) <= DRIFT_S:
            return False
        log.warning("clock of the system taken anew jump_s=%.0f", jump_s)
        self._base += jump_s
        return True

    def hold(self) -> None:
        """Somebody was let in by this time: ``settle_for`` takes no other any more. A captured signature would be young
        again, and good again, by a clock that was set back to when it was made."""
        self._is_held = True

    def settle_for(self, age_s: float) -> bool:
        """The same, if what looks so old to us (negative: not made yet) is of now by the system's clock, and this time
        does not hold."""
        return not self._is_held and abs(age_s + self.jump_s()) <= DRIFT_S and self.settle()


def seconds_since_boot() -> float:
    """Monotonic, a sleep of the machine counted in: else it would look like a jump of the system's clock. (Linux's
    CLOCK_MONOTONIC stands still in a sleep, macOS's does not.)"""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def wall_clock(environ: Mapping[str, str], true: Callable[[], float] = time.time) -> Callable[[], float]:
    """Unix seconds. Raises StartError for a file that says no number."""
    path = Path(environ.get(VARIABLE, ""))
    if not environ.get(VARIABLE) or environ.get(SWITCH) != "1":
        return true

    def wrong() -> float:
        return true() + offset_s(path)

    wrong()
    return wrong


def offset_s(path: Path) -> float:
    """Raises StartError."""
    try:
        return float(path.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise StartError(f"{VARIABLE} is {path}, which must hold seconds: {error}.") from None
