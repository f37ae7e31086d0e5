"""This mesh's place on disk: where run files, logs and models lie, and what the run files say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshnet.domain.errors import StartError
from meshnet.weights import places
from meshnet.wire.runfile import RunFile

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Home:
    """Paths of one mesh. ``is_default``: MESHNET_HOME is unset, so fixed ports may be used."""

    state: Path
    models: Path
    is_default: bool

    @property
    def run_folder(self) -> Path:
        return self.state / "run"

    @property
    def logs_folder(self) -> Path:
        return self.state / "logs"

    @property
    def nodes_folder(self) -> Path:
        return self.state / "nodes"

    @property
    def up_lock(self) -> Path:
        return self.run_folder / "up.lock"

    def run_file(self, name: str) -> Path:
        return self.run_folder / f"{check_name(name)}.json"

    def log_file(self, name: str) -> Path:
        return self.logs_folder / f"{check_name(name)}.log"

    def records(self) -> list[RunFile]:
        """What every readable run file says, trackers first, then by name; whether it is true is for processes.py."""
        found = [read_run_file(path) for path in sorted(self.run_folder.glob("*.json"))]
        return sorted((r for r in found if r is not None), key=lambda r: (r.kind != "tracker", natural(r.name)))

    def record(self, name: str) -> RunFile | None:
        return read_run_file(self.run_file(name))


def home_of(environ: Mapping[str, str]) -> Home:
    is_default = not environ.get(places.HOME_VARIABLE, "").strip()
    return Home(places.state_root(environ), places.store_root(environ), is_default)


def check_name(name: str) -> str:
    """A daemon's name is a file name too. Raises StartError for one that could leave the folder."""
    if not _NAME.fullmatch(name):
        raise StartError(f"{name!r} cannot name a daemon: use letters, digits, '.', '_' and '-', 64 at most.")
    return name


def read_run_file(path: Path) -> RunFile | None:
    """None when there is none or it is no run file (half-written, another program's)."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return msgspec.structs.replace(record, url=_usable(record.url))


def _usable(url: str) -> str:
    """A daemon that listens everywhere says so; this machine reaches it over loopback."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def natural(name: str) -> tuple[str, int, str]:
    """``n2`` before ``n10``."""
    match = re.fullmatch(r"(.*?)(\d*)", name)
    return (match[1], int(match[2] or 0), name) if match else (name, 0, name)
