"""Slices of demand as text: ``<public key>.<signature>.<body>``, signed by the tracker that counted (ADR-0042).

The body is JSON and travels on as it came: a tracker that passes a slice on cannot change it, and whose it is says the
key alone. It is verified before it is parsed. What slices mean and how they merge is ``domain.slices``'.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import wallet_of
from meshnet.domain.slices import MAX_COUNT, MAX_SEQUENCE, MAX_URL_CHARS, Slice
from meshnet.wire.messages import ModelKeyText

_CONTEXT = b"meshnet-slice-v1\0"
"""So that nothing else a tracker's key signs can pass as a slice."""
Window = Literal["per_minute", "per_hour", "per_day"]


class _Body(Struct, frozen=True, forbid_unknown_fields=True):
    """What one tracker counted itself: absolute bucket index -> count, per model and window."""

    generation: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]
    """Rises with each start; Unix seconds where nothing else is known."""
    seq: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE)]
    url: Annotated[str, Meta(max_length=MAX_URL_CHARS)]
    models: dict[ModelKeyText, dict[Window, dict[str, Annotated[int, Meta(ge=0, le=MAX_COUNT)]]]]


_decoder = msgspec.json.Decoder(_Body)


def sign_slice(key: Ed25519PrivateKey, slice_: Slice) -> str:
    """The slice's text. ``tracker_id`` must be the wallet of ``key``: readers take no other for it."""
    models = {
        model: {window: {str(index): count for index, count in counts.items()} for window, counts in windows.items()}
        for model, windows in slice_.buckets.items()
    }
    # The domain's constants name the windows.
    body = msgspec.json.encode(_Body(slice_.generation, slice_.seq, slice_.url, models))  # type: ignore[arg-type]
    public = key.public_key().public_bytes_raw()
    return f"{_encode(public)}.{_encode(key.sign(_CONTEXT + body))}.{body.decode()}"


def open_slice(text: str) -> Slice:
    """The slice with its text, under the id that its key gives. Raises InvalidRequest when the signature does not
    hold or a bound is broken."""
    try:
        public, signature, body = text.split(".", 2)
        key, content = _decode(public), body.encode()
        Ed25519PublicKey.from_public_bytes(key).verify(_decode(signature), _CONTEXT + content)
    except (ValueError, binascii.Error):
        raise _bad("it is no slice") from None
    except InvalidSignature:
        raise _bad("its signature does not hold") from None
    try:
        slice_ = _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(str(error)) from None
    models = {
        model: {window: {_index(text): count for text, count in counts.items()} for window, counts in windows.items()}
        for model, windows in slice_.models.items()
    }
    return Slice(wallet_of(key), slice_.generation, slice_.seq, slice_.url, models, text)


def _index(text: str) -> int:
    """-1, which no slice takes, for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def _decode(text: str) -> bytes:
    if not text.isascii():
        raise ValueError(text)
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _bad(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Not a slice of demand: {why}. Both trackers need the same version.", code="bad_slice", param="slices"
    )
