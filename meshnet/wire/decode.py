"""Bytes of JSON to a checked struct; every failure is an InvalidRequest that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from meshnet.domain.errors import InvalidRequest

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


def decode_json(body: bytes, into: type[T]) -> T:
    """Decode and validate ``body``. Raises InvalidRequest with ``param`` set to the field's path."""
    try:
        return msgspec.json.decode(body, type=into)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None


def convert(value: Any, into: type[T]) -> T:
    """The same for a value that is already decoded."""
    try:
        return msgspec.convert(value, into)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from None


def invalid_field(error: msgspec.ValidationError) -> InvalidRequest:
    text = str(error)
    match = _AT.search(text)
    if match is None:
        return InvalidRequest(f"{text}.", param=_named_field(text))
    path = match["path"]
    return InvalidRequest(f"{path}: {text[: match.start()]}.", param=path)


def _named_field(text: str) -> str | None:
    named = re.search(r"field `([^`]+)`", text)
    return named[1] if named else None
