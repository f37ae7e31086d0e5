"""``meshnet keys``: make, list and revoke the keys of this home's daemons; they follow the file without a restart."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from meshnet.cli.exits import exit_code_of
from meshnet.cli.terminal import complain, console, error_console, visible
from meshnet.domain.errors import InvalidRequest, MeshnetError, StartError
from meshnet.domain.keys import SECRET_BYTES, KeyRing, Scope, make_key
from meshnet.weights.places import state_root
from meshnet.wire.keyfile import FILE_MODE, KEY_FILE, decode_keys, encode_keys

app = typer.Typer(help="Keys that open this mesh: create, list, revoke.", no_args_is_help=True)

SCOPES: dict[str, Scope] = {"chat": "chat", "read": "read", "admin": "admin", "join": "join"}


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whom or what it is for.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="chat (default), read, admin; or join, alone. Repeatable."),
    ] = None,
) -> None:
    """Make a key and show it, this once: only its hash is kept.

    \b
    Examples:
      meshnet keys create alice                            may chat
      meshnet keys create laptop --scope read --scope chat
      export MESHNET_API_KEY=$(meshnet keys create ops --scope admin)
      meshnet keys create gpu-box --scope join             for a node's MESHNET_JOIN_TOKEN
    """
    with _answering():
        chosen: frozenset[Scope] = frozenset(_scope(text) for text in scope or ["chat"])
        text, record = make_key(name, chosen, secrets.token_bytes(SECRET_BYTES), time.time())
        _change(lambda ring: ring.add(record))
        typer.echo(text)
        note = f"Key {record.key_id} for {visible(name)}: {', '.join(sorted(chosen))}. It is not shown again."
        error_console().print(note, soft_wrap=True)


@app.command("list")
def list_keys() -> None:
    """Names, scopes and ages; never the keys."""
    with _answering():
        table = Table("id", "name", "scopes", "made", "state", box=None, pad_edge=False)
        for record in _read(_path()).records:
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created))
            state = "live" if record.is_live else "revoked"
            table.add_row(record.key_id, visible(record.name), " ".join(sorted(record.scopes)), made, state)
        console().print(table)


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="A key's name or id.")]) -> None:
    """Make a key open nothing from now on."""
    with _answering():
        _change(lambda ring: ring.revoke(name, time.time()))
        typer.echo(f"{visible(name)} is revoked.")


def _change(change: Callable[[KeyRing], KeyRing]) -> None:
    """Read, change, write, with other ``meshnet keys`` kept out meanwhile."""
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write(path, encode_keys(change(_read(path))))
    except OSError as error:
        raise StartError(f"Cannot write {path}: {error.strerror}.") from None


def _read(path: Path) -> KeyRing:
    try:
        return decode_keys(path.read_bytes())
    except FileNotFoundError:
        return KeyRing()


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _path() -> Path:
    return state_root(os.environ) / KEY_FILE


def _scope(text: str) -> Scope:
    if text not in SCOPES:
        raise InvalidRequest(f"{text!r} is no scope; there are: {', '.join(SCOPES)}.")
    return SCOPES[text]


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except MeshnetError as error:
        complain(error.message)
        raise typer.Exit(exit_code_of(error)) from None
