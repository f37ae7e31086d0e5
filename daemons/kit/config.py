"""Configuration of a daemon: a frozen dataclass, filled from defaults < TOML < ``MESHNET_*`` < flags.

Read once, at start. A misspelt key is an error that names the file and what exists.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from meshnet.domain.errors import StartError

T = TypeVar("T")


def load(kind: type[T], section: str, toml: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> T:
    """An instance of the dataclass ``kind``. ``section`` is its table in the TOML file; flags that are None are unset.

    The variable of field ``half_life`` is ``MESHNET_HALF_LIFE``; lists are written with commas there. Raises
    StartError naming the field and the value.
    """
    values: dict[str, Any] = {}
    if toml is not None:
        values |= _from_toml(kind, section, toml)
    lists = _list_fields(kind)
    for name in field_names(kind):
        text = environ.get(f"MESHNET_{name.upper()}")
        if text is not None and text.strip():
            values[name] = _listed(text) if name in lists else text.strip()
    values |= {name: value for name, value in flags.items() if value is not None}
    return build(kind, values)


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass from loose values (strings are read as numbers and booleans where the field is one)."""
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except msgspec.ValidationError as error:
        raise StartError(f"Bad setting: {error}") from None
    except ValueError as error:
        raise StartError(f"Bad setting: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The whole file. Raises StartError with the line of a syntax error."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartError(f"Cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{path} is not valid TOML: {error}.") from None


def field_names(kind: type[Any]) -> Sequence[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _list_fields(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind) if str(field.type).startswith("tuple")}


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _from_toml(kind: type[Any], section: str, path: Path) -> dict[str, Any]:
    table = read_toml(path).get(section, {})
    if not isinstance(table, dict):
        raise StartError(f"{path}: [{section}] must be a table.")
    known = field_names(kind)
    for key in table:
        if key not in known:
            raise StartError(f"{path}: [{section}] has no setting {key!r}; it has: {', '.join(known)}.")
    return table
