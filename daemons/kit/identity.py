"""A daemon's Ed25519 key: one PEM file, read by nobody else, and beside it the same with its certificate for TLS."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.tls import certificate_of
from meshnet.domain.errors import StartError
from meshnet.domain.ids import Wallet, wallet_of

KEY_MODE = 0o600


@dataclass(frozen=True, slots=True)
class WalletKey:
    """``certificate`` is DER; ``tls_file`` holds key and certificate, since TLS contexts read them from files only."""

    private: Ed25519PrivateKey
    public_key: bytes
    wallet: Wallet
    certificate: bytes
    tls_file: Path

    def __repr__(self) -> str:
        return f"<WalletKey {self.wallet}>"


def load_or_create(path: Path) -> WalletKey:
    """The key at ``path``, made on first use. Raises StartError when others can read it, or when it is no such key."""
    try:
        if not path.exists():
            _create(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise StartError(f"{path} can be read by others (mode {mode:04o}). Run: chmod 600 {path}")
        return make_wallet_key(_load(path), path.with_suffix(".tls"))
    except OSError as error:
        raise StartError(f"Cannot use the key {path}: {error.strerror}.") from None


def make_wallet_key(key: Ed25519PrivateKey, tls_file: Path) -> WalletKey:
    """All that is derived from a key; ``tls_file`` is written where it is missing or another's."""
    public_key = key.public_key().public_bytes_raw()
    certificate = certificate_of(key)
    content = _pem(key) + ssl.DER_cert_to_PEM_cert(certificate).encode()
    if not tls_file.exists() or tls_file.read_bytes() != content:
        _write(tls_file, content)
    return WalletKey(key, public_key, wallet_of(public_key), certificate, tls_file)


def _load(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise StartError(f"{path} holds no key. Restore it, or remove it for a new wallet.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise StartError(f"{path} holds a key that is not Ed25519. Restore it, or remove it for a new wallet.")
    return key


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, _pem(Ed25519PrivateKey.generate()))


def _write(path: Path, content: bytes) -> None:
    """Written whole before it has its name, and never readable by others in between."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
