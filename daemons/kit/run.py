"""A daemon's life as a process: start, say where it listens, wait for a signal, stop within 5 s (a tracker's
running answers may take longer).

What a daemon says of itself lies in ``<state>/run/<name>.json``: pid, the process's start time, kind and address.
Whoever stops it (``meshnet down``) checks pid and start time, so that a recycled pid is never signalled.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import msgspec

from daemons.kit import host
from daemons.kit.tasks import Tasks
from meshnet.domain.errors import MeshnetError
from meshnet.wire.runfile import RunFile

log = logging.getLogger(__name__)

EXIT_CANNOT_START = 1
EXIT_SECOND_SIGNAL = 130


class Stop:
    """Set by SIGTERM, SIGINT or SIGHUP; a second signal cuts ``patient`` work short, else ends the process at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_patient = False

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._event.is_set():
            if not self._is_patient or self._hurry.is_set():
                os._exit(EXIT_SECOND_SIGNAL)
            log.info("hurrying signal=%s", signal.Signals(number).name)
            self._hurry.set()
            return
        log.info("stopping signal=%s", signal.Signals(number).name)
        self._event.set()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    async def patient(self, work: Coroutine[Any, Any, None]) -> None:
        """Part of a stop that may take long: ``work`` to its end, or until a second signal cancels it."""
        self._is_patient = True
        tasks = Tasks("stop")
        both = {tasks.start(work, "drain"), tasks.start(self._hurry.wait(), "hurry")}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_patient = False
            await tasks.close()


def write_run_file(folder: Path, kind: Literal["tracker", "node", "relay"], name: str, url: str) -> Path:
    """Say who and where we are, atomically; returns the file, to be removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    mine = RunFile(kind=kind, name=name, pid=os.getpid(), started=host.process_started(os.getpid()) or 0.0, url=url)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(msgspec.json.encode(mine))
    temporary.replace(path)
    return path


def run(main: Callable[[Stop], Awaitable[None]]) -> int:
    """Run ``main`` until it returns; an error people can mend is one line on standard error. Returns its exit code."""

    async def guarded() -> int:
        stop = Stop()
        stop.install()
        try:
            await main(stop)
        except MeshnetError as error:
            log.error("cannot start reason=%s", error.message)
            print(error.message, file=sys.stderr)
            return EXIT_CANNOT_START
        return 0

    # What was imported stays: a full collection that walks all of it stops every call for some 30 ms.
    gc.freeze()
    return asyncio.run(guarded())
