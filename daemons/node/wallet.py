"""A node's wallet: one Ed25519 key per node instance, made at its first start, readable by its owner alone."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet.domain.errors import StartError
from meshnet.domain.ids import Wallet, wallet_of

FILE_NAME = "wallet.key"
OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True)
class WalletKey:
    """The key and its fingerprint. The private half never leaves this object."""

    wallet: Wallet
    public_key: bytes
    """Raw, 32 bytes."""
    private: Ed25519PrivateKey = field(repr=False)


def open_wallet(folder: Path) -> WalletKey:
    """The key in ``folder``, made if there is none. Raises StartError when it is damaged or others may read it."""
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        return _load(path)
    except OSError as error:
        raise StartError(f"Cannot use the wallet {path}: {error.strerror}.") from None


def _make(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Written aside and moved into place: half a key never lies there.
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        if not path.exists():
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _load(path: Path) -> WalletKey:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StartError(f"{path} has mode {mode:04o}: others can read this node's key. Run: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise StartError(f"{path} is no Ed25519 key. Move it away and a new wallet is made.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise StartError(f"{path} is no Ed25519 key. Move it away and a new wallet is made.")
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return WalletKey(wallet_of(public), public, key)
