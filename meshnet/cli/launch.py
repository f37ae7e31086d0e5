"""One daemon as a process: its command line, and how it is started so that it outlives this terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from meshnet.cli import processes
from meshnet.cli.home import Home
from meshnet.cli.meshfile import WITHOUT_FLAG
from meshnet.domain.errors import StartError
from meshnet.domain.keys import KeyRing, check_bind
from meshnet.wire import api
from meshnet.wire.keyfile import KEY_FILE, decode_keys
from meshnet.wire.runfile import RunFile

Kind = Literal["tracker", "node", "relay"]

LOG_KEEP_BYTES = 10 * 1024 * 1024
"""A log larger than this is set aside (one old copy, ``.log.1``) when its daemon starts again."""


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """What to start. ``settings`` are the daemon's flags with ``_`` for ``-``; None means its own default."""

    kind: Kind
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return str(self.settings.get("host") or "127.0.0.1")

    @property
    def port(self) -> int:
        return int(self.settings.get("port") or 0)

    @property
    def what(self) -> str:
        """``layers 0-14 of smollm2-135m``, for people."""
        shard, model = self.settings.get("shard"), self.settings.get("model")
        if self.kind != "node":
            return self.kind
        return f"layers {shard} of {model}" if shard and model else str(model or "layers the tracker assigns")


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon just started: ``log_offset`` is where its own lines begin in the log."""

    spec: DaemonSpec
    process: subprocess.Popen[bytes]
    log: Path
    log_offset: int


def command(spec: DaemonSpec) -> list[str]:
    """The full command line. ``-P``: a folder named ``daemons`` where the user stands must not be imported."""
    return [sys.executable, "-P", "-m", f"daemons.{spec.kind}", "--name", spec.name, *flags(spec.settings)]


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a daemon's command line."""
    words: list[str] = []
    for key, value in settings.items():
        if key != "name" and key not in WITHOUT_FLAG:
            words += _flag(f"--{key.replace('_', '-')}", value)
    return words


def environment(spec: DaemonSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the settings that have no flag."""
    extra = {f"MESHNET_{key.upper()}": str(spec.settings[key]) for key in WITHOUT_FLAG if key in spec.settings}
    return {**environ, **extra}


def start(home: Home, spec: DaemonSpec, environ: Mapping[str, str]) -> Started:
    """Start it detached, output to its log. Leaves a run file without address at once, so that ``down`` finds a daemon
    that is still starting; the daemon then writes its own."""
    log = home.log_file(spec.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    home.run_folder.mkdir(parents=True, exist_ok=True)
    _set_aside(log)
    home.run_file(spec.name).unlink(missing_ok=True)
    with log.open("ab") as output:
        offset = output.tell()
        process = subprocess.Popen(
            command(spec),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(spec, environ),
            start_new_session=True,
        )
    _announce(home, spec, process.pid)
    return Started(spec, process, log, offset)


def run_in_foreground(spec: DaemonSpec, environ: Mapping[str, str]) -> None:
    """Become the daemon: this process is replaced, so signals and exit code are its own."""
    words = command(spec)
    sys.stdout.flush()
    os.execve(words[0], words, environment(spec, environ))


def default_port(home: Home, kind: Kind, name: str) -> int:
    """A fixed one in the default home (n1 -> 7071, n2 -> 7072, …), so that the addresses in the README work; else 0."""
    if not home.is_default:
        return 0
    if kind == "tracker":
        return api.DEFAULT_TRACKER_PORT
    if kind == "relay":
        return api.DEFAULT_RELAY_PORT
    number = int(name[1:]) if name[:1] == "n" and name[1:].isdecimal() else 0
    last = api.DEFAULT_RELAY_PORT - api.DEFAULT_NODE_PORT
    return api.DEFAULT_NODE_PORT + number - 1 if 1 <= number <= last else 0


def check_torch(spec: DaemonSpec, installed: bool) -> None:
    """A node needs the heavy part; say so before a process dies of it."""
    if spec.kind == "node" and not installed:
        raise StartError("A node needs torch, which is not installed. Install it with: pip install 'meshnet-llm[node]'")


def check_door(home: Home, spec: DaemonSpec) -> None:
    """A tracker refuses a door that anybody could come in by; said here it is one line. Raises StartError."""
    settings = spec.settings
    if spec.kind != "tracker" or settings.get("config"):
        return
    path = home.state / KEY_FILE
    keys = decode_keys(path.read_bytes()) if path.is_file() else KeyRing()
    has_tls = bool(settings.get("tls_certificate") or settings.get("trusted_proxy"))
    check_bind(spec.host, settings.get("profile") or "local", has_keys=keys.has_live(), has_tls=has_tls)


def _announce(home: Home, spec: DaemonSpec, pid: int) -> None:
    started = processes.started_at(pid)
    if started is None:
        return
    path = home.run_file(spec.name)
    record = RunFile(kind=spec.kind, name=spec.name, pid=pid, started=started, url="")
    draft = path.with_suffix(f".{pid}.draft")
    draft.write_bytes(msgspec.json.encode(record))
    try:
        # A link fails where the daemon was quicker: its own file, with the address, stays.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _flag(name: str, value: Any) -> list[str]:
    match value:
        case None | False:
            return []
        case True:
            return [name]
        case list() | tuple():
            return [word for item in value for word in (name, str(item))]
        case _:
            return [name, str(value)]


def _set_aside(log: Path) -> None:
    try:
        if log.stat().st_size > LOG_KEEP_BYTES:
            log.replace(log.with_name(log.name + ".1"))
    except FileNotFoundError:
        pass
