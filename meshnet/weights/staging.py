"""How a model comes into the store: written beside its place, renamed when complete, one pull at a time.

A killed pull leaves a hidden folder that nothing takes for a model; the next pull of that model removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from meshnet.domain.errors import Conflict, WeightsError
from meshnet.domain.ids import is_model_key
from meshnet.weights.manifest import MANIFEST_NAME
from meshnet.weights.store import Store

FreeBytes = Callable[[Path], int]
"""Bytes free for us on the disk of a folder."""

SPARE_BYTES = 64 << 20
"""Left free on the disk: a full disk stops more than meshnet."""

LOCK_POLL_S = 0.2
"""Between two tries for a lock another pull holds: pulls take seconds to hours."""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def require_space(root: Path, needed_bytes: int, what: str, free: FreeBytes) -> None:
    """Raises WeightsError (code ``disk_full``) with the needed and free bytes. ``root`` exists."""
    available = free(root)
    if needed_bytes + SPARE_BYTES > available:
        raise WeightsError(
            f"The disk of {root} is too small for {what}: {needed_bytes + SPARE_BYTES} bytes needed, {available} free. "
            "Free some, or set MESHNET_HOME to another disk.",
            code="disk_full",
        )


@contextlib.contextmanager
def pull_lock(store: Store, model_key: str, wait_s: float = 0.0) -> Iterator[None]:
    """Held while a model is pulled; the system drops it when the process dies. Raises Conflict if another still holds
    it after ``wait_s``."""
    store.root.mkdir(parents=True, exist_ok=True)
    file = store.root / f".{model_key}.lock"
    descriptor = _acquire(file, model_key, time.monotonic() + wait_s)
    try:
        yield
    finally:
        # Removed while held: whoever waits on the old file notices it is not the one in the folder.
        file.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def staged(store: Store, model_key: str) -> Iterator[Path]:
    """An empty folder to write the model into; it takes its place in the store when the block ends well, and is gone
    when not. Call it under ``pull_lock``."""
    prefix = f".incoming-{model_key}-"
    remove_leftovers(store, model_key)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=store.root))
    folder.chmod(0o755)
    try:
        yield folder
        if not (folder / MANIFEST_NAME).is_file():
            raise WeightsError(f"{folder} was left without a manifest; nothing was stored.")
        _take_place(folder, store.path(model_key), store.root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(store: Store, model_key: str) -> None:
    """Remove what killed pulls of this model left. Call it under ``pull_lock``."""
    for kind in ("incoming", "outgoing"):
        # mkdtemp adds 8 characters; the exact length keeps `a` from matching `a-b`.
        for folder in store.root.glob(f".{kind}-{model_key}-" + "?" * 8):
            shutil.rmtree(folder, ignore_errors=True)


def downloads_folder(store: Store, model_key: str) -> Path:
    """Where a source keeps what it downloaded so far, so that the next pull of the model resumes."""
    return store.root / f".downloads-{model_key}"


def remove_model(store: Store, model_key: str) -> int:
    """Delete a model and what interrupted pulls of it left; gives the bytes freed. Raises NotFound (with what exists)
    if there is nothing of it, Conflict while it is being pulled."""
    if not is_model_key(model_key) or not store.root.is_dir():
        return store.remove(model_key)
    with pull_lock(store, model_key):
        remove_leftovers(store, model_key)
        downloads = downloads_folder(store, model_key)
        freed = sum(file.stat().st_size for file in downloads.rglob("*") if file.is_file())
        shutil.rmtree(downloads, ignore_errors=True)
        return freed if freed and not store.path(model_key).is_dir() else freed + store.remove(model_key)


def _take_place(folder: Path, target: Path, root: Path) -> None:
    _sync_folder(folder)
    if target.exists():
        outgoing = Path(tempfile.mkdtemp(prefix=f".outgoing-{target.name}-", dir=root))
        target.rename(outgoing / target.name)
        folder.rename(target)
        shutil.rmtree(outgoing, ignore_errors=True)
    else:
        folder.rename(target)
    _sync_folder(root)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _acquire(file: Path, model_key: str, deadline: float) -> int:
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        if not _try_lock(descriptor):
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise Conflict(f"Another pull of {model_key} is running. Wait for it, or stop it first.")
            time.sleep(LOCK_POLL_S)
            continue
        if _is_same_file(descriptor, file):
            return descriptor
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, file: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == file.stat().st_ino
    except FileNotFoundError:
        return False
