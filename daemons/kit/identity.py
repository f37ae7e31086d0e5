"""A daemon's Ed25519 key: one PEM file with the private key and its own certificate, read by nobody else."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.tls import certificate_of
from meshnet.domain.errors import StartError
from meshnet.domain.ids import Wallet, wallet_of

KEY_MODE = 0o600


@dataclass(frozen=True, slots=True)
class WalletKey:
    """``certificate`` is DER; ``path`` holds key and certificate, since TLS contexts read them from a file only."""

    private: Ed25519PrivateKey
    public_key: bytes
    wallet: Wallet
    certificate: bytes
    path: Path

    def __repr__(self) -> str:
        return f"<WalletKey {self.wallet}>"


def load_or_create(path: Path) -> WalletKey:
    """The key at ``path``, made on first use. Raises StartError when others can read it, or when it is no such key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise StartError(f"Cannot read {path}: {error.strerror}.") from None
    if mode & 0o077:
        raise StartError(f"{path} can be read by others (mode {mode:o}). Run: chmod 600 {path}")
    return _load(path)


def _load(path: Path) -> WalletKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, OSError) as error:
        raise StartError(f"{path} holds no key ({error}). Restore it, or remove it for a new wallet.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise StartError(f"{path} holds a key that is not Ed25519. Restore it, or remove it for a new wallet.")
    return _wallet_key(key, path)


def _create(path: Path) -> WalletKey:
    """Written whole before it has its name: a crash leaves no half key, and two processes end up with one."""
    wallet = _wallet_key(Ed25519PrivateKey.generate(), path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE), "wb") as file:
            file.write(_pem(wallet))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return _load(path)
        finally:
            temporary.unlink()
    except OSError as error:
        raise StartError(f"Cannot write {path}: {error.strerror}.") from None
    return wallet


def _wallet_key(key: Ed25519PrivateKey, path: Path) -> WalletKey:
    public_key = key.public_key().public_bytes_raw()
    return WalletKey(key, public_key, wallet_of(public_key), certificate_of(key), path)


def _pem(wallet: WalletKey) -> bytes:
    key = wallet.private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key + ssl.DER_cert_to_PEM_cert(wallet.certificate).encode()
