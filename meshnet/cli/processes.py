"""Processes that ``up`` started: whether they are truly ours, and how they are stopped.

Ours is a process with the run file's pid *and* start time *and* our module on its command line: a pid alone may by now
belong to anybody.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from meshnet.cli.home import Home, read_run_file
from meshnet.wire.runfile import RunFile

TERM_PATIENCE_S = 8.0
"""From SIGTERM to SIGKILL: a daemon promises to stop within 5 s; 3 s more for a busy machine."""
HURRY_PATIENCE_S = 2.0
"""From a second SIGTERM to SIGKILL."""
KILL_PATIENCE_S = 5.0
"""How long the system may take to bury a killed process (a big one has memory to give back)."""
LOOK_EVERY_S = 0.02
"""How late an end is noticed; a look is one read of /proc per process."""
START_TOLERANCE_S = 1.0
"""Start times are derived from boot time, which moves when the clock is set; a reused pid is far younger."""

Outcome = Literal["stopped", "killed", "stale", "survived"]


@dataclass(frozen=True, slots=True)
class Stopped:
    record: RunFile
    outcome: Outcome


def find(record: RunFile) -> psutil.Process | None:
    """The live process that this run file speaks of, or None: gone, a zombie, or another one with its pid."""
    try:
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.started) > START_TOLERANCE_S:
            return None
        if process.status() == psutil.STATUS_ZOMBIE or f"daemons.{record.kind}" not in process.cmdline():
            return None
    except (psutil.Error, ValueError):
        return None
    return process


def is_running(record: RunFile) -> bool:
    return find(record) is not None


def living(home: Home) -> list[RunFile]:
    return [record for record in home.records() if is_running(record)]


def stop(home: Home, records: Sequence[RunFile], patience_s: float = TERM_PATIENCE_S) -> list[Stopped]:
    """Stop them, nodes and relays first, so that they can say goodbye to the tracker. Removes their run files."""
    first = [record for record in records if record.kind != "tracker"]
    last = [record for record in records if record.kind == "tracker"]
    return [*_stop_together(home, first, patience_s), *_stop_together(home, last, patience_s)]


def _stop_together(home: Home, records: Iterable[RunFile], patience_s: float) -> list[Stopped]:
    found = [(record, find(record)) for record in records]
    processes = [process for _, process in found if process is not None]
    # Children outlive a killed parent; they are listed while it still lives.
    families = {process.pid: _children(process) for process in processes}
    for process in processes:
        _signal(process.terminate)
    stubborn = _wait(processes, patience_s)
    for process in stubborn:  # A tracker may still wait for running answers; a second signal ends them, and says so.
        _signal(process.terminate)
    stubborn = _wait(stubborn, HURRY_PATIENCE_S)
    for process in stubborn:
        _signal(process.kill)
    orphans = [child for family in families.values() for child in family if _is_alive(child)]
    for child in orphans:
        _signal(child.kill)
    alive = {process.pid for process in _wait([*stubborn, *orphans], KILL_PATIENCE_S)}
    killed = {process.pid for process in stubborn}
    results = []
    for record, process in found:
        outcome = _outcome(process, killed, alive)
        if outcome != "survived":
            forget(home, record)
        results.append(Stopped(record, outcome))
    return results


def forget(home: Home, record: RunFile) -> None:
    """Remove the run file, unless a new process has written its own meanwhile."""
    path = home.run_file(record.name)
    now = read_run_file(path)
    if now is None or (now.pid == record.pid and now.started == record.started):
        path.unlink(missing_ok=True)


def started_at(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _outcome(process: psutil.Process | None, killed: set[int], alive: set[int]) -> Outcome:
    if process is None:
        return "stale"
    if process.pid in alive:
        return "survived"
    return "killed" if process.pid in killed else "stopped"


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):
        send()


def _wait(processes: Sequence[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Wait for their ends; returns those that still live. A zombie has ended: in a container nobody may bury it."""
    deadline = time.monotonic() + patience_s
    left = [process for process in processes if _is_alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        left = [process for process in left if _is_alive(process)]
    return left


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
