"""``meshnet doctor``: looks at everything a mesh on this machine needs, and says what to do about what is wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer
from rich.text import Text

from meshnet.cli import exits, ports, processes
from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.home import Home, home_of
from meshnet.cli.meshfile import DEFAULT_FILE, is_there, read_mesh
from meshnet.cli.status import print_json
from meshnet.cli.terminal import console, format_bytes, visible_text
from meshnet.domain.errors import MeshnetError, StartError
from meshnet.weights.store import Store
from meshnet.wire import api

MIN_PYTHON = (3, 11)
LOW_DISK_BYTES = 2 * 1000**3
"""The demo model and its conversion need about 1 GB."""
LOW_MEMORY_BYTES = 2 * 1000**3
"""Three demo nodes hold about 0.5 GB each."""
NODE_PACKAGES = ("torch", "transformers", "safetensors", "gguf")

Verdict = Literal["ok", "note", "bad"]
_SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("bad ", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    what: str
    words: str


def doctor(
    repair_db: Annotated[
        bool, typer.Option("--repair-db", help="Set damaged statistics files aside; sound ones stay.")
    ] = False,
    stats_db: Annotated[
        Path | None, typer.Option("--stats-db", help="With --repair-db: this file instead of the home's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A list of verdict, what and words.")] = False,
) -> None:
    """Check python, packages, disk, memory, ports, state files, models and the tracker. Exit code 1 if one is bad."""
    home, out = home_of(os.environ), console()
    if repair_db:
        raise typer.Exit(repair_databases(home, stats_db))
    findings = list(examine(home))
    if as_json:
        print_json(findings)
    for finding in () if as_json else findings:
        sign, style = _SIGNS[finding.verdict]
        line = Text.assemble((sign, style), f"  {finding.what:<10}", visible_text(finding.words))
        out.print(line, soft_wrap=True)
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(exits.FAILED)


def repair_databases(home: Home, stats_db: Path | None) -> int:
    """Each in a child: whether a file is sound only the tracker's own code can say. Returns the exit code."""
    running = [record.name for record in processes.living(home) if record.kind == "tracker"]
    if running:
        raise StartError(f"{', '.join(running)} writes to its file now. Stop it first: meshnet down {running[0]}")
    files = [stats_db] if stats_db is not None else sorted((home.state / "trackers").glob("*.db"))
    if not files:
        console().print(f"There is no statistics file in {home.state / 'trackers'}.", soft_wrap=True)
    codes = [
        subprocess.run([sys.executable, "-P", "-m", "daemons.tracker.repair", str(file)], check=False).returncode
        for file in files
    ]
    return exits.FAILED if any(codes) else exits.OK


def examine(home: Home) -> Iterator[Finding]:
    yield _python()
    yield _packages()
    yield from _folders(home)
    yield _memory()
    yield _loopback()
    yield from _ports(home)
    yield from _meshfile()
    yield from _models(home)
    yield from _run_files(home)
    yield _tracker()


def _python() -> Finding:
    words = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return Finding("bad", "python", f"{words}; meshnet needs {'.'.join(map(str, MIN_PYTHON))} or newer.")
    return Finding("ok", "python", words)


def _packages() -> Finding:
    missing = [name for name in NODE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        words = f"{', '.join(missing)} missing: no node can run here. Install with: pip install 'meshnet-llm[node]'"
        return Finding("note", "packages", words)
    return Finding("ok", "packages", "what a node needs is installed")


def _folders(home: Home) -> Iterator[Finding]:
    for what, folder in (("state", home.state), ("models", home.models)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".doctor-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            yield Finding(
                "bad", what, f"cannot write to {folder}: {error.strerror}. Set MESHNET_HOME to another folder."
            )
            continue
        free = shutil.disk_usage(folder).free
        verdict: Verdict = "ok" if free >= LOW_DISK_BYTES else "note"
        yield Finding(verdict, what, f"{folder}, {format_bytes(free)} free")


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    verdict: Verdict = "ok" if available >= LOW_MEMORY_BYTES else "note"
    return Finding(verdict, "memory", f"{format_bytes(available)} available, {psutil.cpu_count() or 1} cores")


def _loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        return Finding("bad", "network", f"cannot listen on 127.0.0.1: {error.strerror}.")
    return Finding("ok", "network", "can listen on 127.0.0.1")


def _ports(home: Home) -> Iterator[Finding]:
    if not home.is_default:
        yield Finding("ok", "ports", "MESHNET_HOME is set: daemons take free ports")
        return
    ours = {record.name for record in processes.living(home)}
    for name, port in (("tracker", api.DEFAULT_TRACKER_PORT), ("n1", api.DEFAULT_NODE_PORT)):
        if name in ours:
            continue
        try:
            ports.check_free("127.0.0.1", port, "set another in meshnet.toml.")
        except StartError as error:
            yield Finding("bad", "ports", error.message)
        else:
            yield Finding("ok", "ports", f"{port} is free for {name}")


def _meshfile() -> Iterator[Finding]:
    path = Path.cwd() / DEFAULT_FILE
    if not is_there(path):
        return
    try:
        mesh = read_mesh(path)
    except StartError as error:
        yield Finding("bad", "mesh file", error.message)
        return
    yield Finding("ok", "mesh file", f"{path}: {len(mesh.nodes)} nodes, model {mesh.model}")


def _models(home: Home) -> Iterator[Finding]:
    store = Store(home.models)
    names = [manifest.model_key for manifest in store.models()]
    yield Finding("ok", "models", ", ".join(names) or "none yet; meshnet up fetches what it needs")
    for problem in store.unreadable():
        yield Finding("bad", "models", problem)


def _run_files(home: Home) -> Iterator[Finding]:
    for record in home.records():
        if processes.is_running(record):
            yield Finding("ok", "daemons", f"{record.name} runs (pid {record.pid}) at {record.url or 'no address yet'}")
        else:
            words = f"{record.name} (pid {record.pid}) died. meshnet up restarts it, meshnet down forgets it."
            yield Finding("note", "daemons", words)


def _tracker() -> Finding:
    try:
        url = find_tracker(None, os.environ, Path.cwd())
        health = ask(url, lambda client: client.health())
    except MeshnetError as error:
        return Finding("note", "tracker", error.message)
    return Finding("ok", "tracker", f"{url} answers, version {health.version or 'unknown'}")
