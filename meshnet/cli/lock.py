"""One ``up`` at a time in a home: the second waits, and then finds everything running."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from meshnet.domain.errors import StartError

TRY_EVERY_S = 0.1


@contextlib.contextmanager
def held(path: Path, timeout_s: float, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file. The system lets go of it when the process ends, however it ends. ``on_wait`` is called once
    if somebody else holds it; raises StartError after ``timeout_s``."""
    with _open(path) as file:
        deadline = time.monotonic() + timeout_s
        waited = False
        while not _try_lock(file.fileno()):
            if not waited:
                on_wait()
            waited = True
            if time.monotonic() >= deadline:
                raise StartError(f"Another `meshnet up` has held {path} for {timeout_s:.0f} s. Try again when it ends.")
            time.sleep(TRY_EVERY_S)
        yield


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise StartError(
            f"Cannot keep state in {path.parent}: {error.strerror}. Set MESHNET_HOME to a folder that can be written."
        ) from None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
