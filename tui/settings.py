"""What the console is told at start: defaults < TOML < environment < flags. A misspelt key is an error."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from meshnet.domain.errors import StartError
from meshnet.wire import api
from meshnet.wire.runfile import RunFile
from tui.draw.ascii import speaks_utf8


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``[console]`` of the home's ``console.toml``."""

    tracker: str = ""
    """URL; empty: the run file of this home, else the default port on this machine."""
    theme: str = ""
    """A Textual theme; empty: ansi-dark over SSH and with NO_COLOR, else meshnet."""
    mouse: bool = False
    """Reporting the mouse sends bytes for every move over SSH and takes the terminal's own selection away."""
    ascii: bool | None = None
    """Only ASCII signs; None: where the locale is not UTF-8."""
    read_only: bool = False
    """No chat, no race and no file is written."""
    keys: dict[str, str] = field(default_factory=dict)
    """Binding id -> keys, such as ``{"everywhere.filter" = "f3"}``."""


def state_root(environ: Mapping[str, str]) -> Path:
    """The same rule as ``meshnet/weights/places.py``, which stands on another floor; a test holds them equal."""
    home = environ.get("MESHNET_HOME", "").strip()
    if home:
        return Path(home).expanduser().absolute()
    return platformdirs.user_state_path("meshnet", appauthor=False)


def config_path(environ: Mapping[str, str]) -> Path:
    """``$MESHNET_HOME/console.toml``, else the user's configuration folder."""
    if environ.get("MESHNET_HOME", "").strip():
        return state_root(environ) / "console.toml"
    return platformdirs.user_config_path("meshnet", appauthor=False) / "console.toml"


def load(environ: Mapping[str, str], flags: Mapping[str, Any], toml: Path | None = None) -> Settings:
    """Raises StartError naming the file and the key. ``toml`` given must exist; the home's may be missing."""
    path = toml or config_path(environ)
    values = _from_toml(path) if toml or path.exists() else {}
    if environ.get("MESHNET_TRACKER", "").strip():
        values["tracker"] = environ["MESHNET_TRACKER"].strip()
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise StartError(f"{path}: {error}.") from None
    return _complete(settings, environ)


def _complete(settings: Settings, environ: Mapping[str, str]) -> Settings:
    return replace(
        settings,
        tracker=_url(settings.tracker or tracker_of_home(environ)),
        theme=settings.theme or default_theme(environ),
        ascii=not speaks_utf8(environ) if settings.ascii is None else settings.ascii,
    )


def default_theme(environ: Mapping[str, str]) -> str:
    """Over SSH the terminal's own sixteen colours: fewest bytes, and they follow the operator's palette."""
    if environ.get("NO_COLOR") or environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return "ansi-dark"
    return environ.get("TEXTUAL_THEME") or "meshnet"


def tracker_of_home(environ: Mapping[str, str]) -> str:
    """The URL that a running tracker of this home left in its run file, else the default one."""
    for path in sorted((state_root(environ) / "run").glob("*.json")):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=RunFile)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if run.kind == "tracker" and _is_alive(run.pid):
            return run.url
    return f"http://127.0.0.1:{api.DEFAULT_TRACKER_PORT}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise StartError(f"{text!r} is no tracker's address; give one such as http://gateway:7070.")
    return url.rstrip("/")


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("console", {})
    except OSError as error:
        raise StartError(f"Cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{path} is not valid TOML: {error}.") from None
    known = list(Settings.__dataclass_fields__)
    for name in table:
        if name not in known:
            raise StartError(f"{path}: [console] has no setting {name!r}; it has: {', '.join(known)}.")
    return dict(table)
