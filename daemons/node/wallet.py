"""A node's wallet: one Ed25519 key per node instance, made at its first start, readable by its owner alone."""

from __future__ import annotations

from pathlib import Path

from daemons.kit.identity import WalletKey, load_or_create

__all__ = ["FILE_NAME", "WalletKey", "open_wallet"]

FILE_NAME = "wallet.key"


def open_wallet(folder: Path) -> WalletKey:
    """The key in ``folder``, made if there is none. Raises StartError when it is damaged or others may read it."""
    return load_or_create(folder / FILE_NAME)
