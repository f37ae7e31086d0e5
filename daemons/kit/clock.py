"""The wall clock of a daemon. For tests it can be wrong: by as many seconds as the file ``MESHNET_CLOCK`` says, looked
at anew each time, so that it can jump while the daemon runs. Honoured only with ``MESHNET_TESTING=1``.

Ages and deadlines do not come from here: they are by ``time.monotonic``, which cannot jump.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshnet.domain.errors import StartError

VARIABLE, SWITCH = "MESHNET_CLOCK", "MESHNET_TESTING"


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
