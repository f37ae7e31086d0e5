"""The mesh's keys as a daemon sees them: ``$MESHNET_HOME/keys.json``, read again whenever it changed."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from meshnet.domain.errors import StartError
from meshnet.domain.keys import KeyRing
from meshnet.wire.keyfile import decode_keys

log = logging.getLogger(__name__)


class KeyFile:
    """Calling it gives the present ring. A file that vanished or broke after the start keeps no door open: no keys."""

    def __init__(self, path: Path) -> None:
        """Raises StartError when the file is damaged or others may write it."""
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._ring = KeyRing()
        self._read()

    def __call__(self) -> KeyRing:
        try:
            self._read()
        except StartError as error:
            log.error("keys unreadable reason=%s", error.message)
            self._ring = KeyRing()
        return self._ring

    def _read(self) -> None:
        try:
            status = self._path.stat()
        except OSError:
            self._seen, self._ring = None, KeyRing()
            return
        if (status.st_mtime_ns, status.st_ino) == self._seen:
            return
        self._seen = (status.st_mtime_ns, status.st_ino)
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise StartError(f"{self._path} can be read by others. Run: chmod 600 {self._path}")
        try:
            self._ring = decode_keys(self._path.read_bytes())
        except OSError as error:
            raise StartError(f"Cannot read {self._path}: {error.strerror}.") from None
