"""``$MESHNET_HOME/keys.json``: the keys of a mesh as one file, hashes only. Who reads or writes it does the IO."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from meshnet.domain.errors import StartError
from meshnet.domain.keys import KeyRecord, KeyRing, Scope
from meshnet.wire.messages import Name

KEY_FILE = "keys.json"
FILE_MODE = 0o600
"""Hashes of 256-bit secrets open nothing, but whoever writes this file makes himself a key."""


class _Key(Struct, frozen=True, forbid_unknown_fields=True):
    key_id: Annotated[str, Meta(pattern=r"^[a-z2-7]{8}\Z")]
    name: Name
    scopes: tuple[Scope, ...]
    secret_hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: float
    revoked: float | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    keys: tuple[_Key, ...]


def encode_keys(ring: KeyRing) -> bytes:
    keys = tuple(
        _Key(k.key_id, k.name, tuple(sorted(k.scopes)), k.secret_hash, k.created, k.revoked) for k in ring.records
    )
    return msgspec.json.format(msgspec.json.encode(_File(1, keys)))


def decode_keys(data: bytes) -> KeyRing:
    """Raises StartError: a damaged key file opens nothing."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{KEY_FILE} cannot be read: {error}. Restore it, or remove it and make new keys.") from None
    return KeyRing(
        KeyRecord(k.key_id, k.name, frozenset(k.scopes), k.secret_hash, k.created, k.revoked) for k in file.keys
    )
