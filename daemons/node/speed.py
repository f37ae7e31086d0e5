"""What a shard measured of itself, kept in the node's folder so that a restart need not measure again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from meshnet.domain.engine import EngineSpeed

FILE_NAME = "speed.json"


def speed_key(revision: str, shard: str, dtype: str, threads: int | None, delay_ms: float) -> str:
    """Everything that the speed depends on, the machine apart; in front what is measured, which may come to be more."""
    return f"2 {revision} {shard} {dtype} threads={threads or 'all'}/{os.cpu_count()} delay={delay_ms:g}"


def read_speed(folder: Path, key: str) -> EngineSpeed | None:
    """The last measurement under the same key; None when there is none or the file cannot be read."""
    try:
        saved = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=dict[str, EngineSpeed])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return saved.get(key)


def save_speed(folder: Path, key: str, speed: EngineSpeed) -> None:
    """Replaces what was there, atomically."""
    temporary = folder / f"{FILE_NAME}.{os.getpid()}.tmp"
    temporary.write_bytes(msgspec.json.encode({key: speed}))
    temporary.replace(folder / FILE_NAME)
