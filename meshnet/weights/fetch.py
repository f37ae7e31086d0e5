"""Fetching a shard's files from machines that have them: only those, resumed, checked against the manifest.

The model's folder is made first, with manifest, config and tokenizer: a partial model. Each weights file is written
beside it, hashed as it comes, and renamed into it once its SHA-256 is the manifest's. What was cut short stays and is
gone on with, by whichever process comes next. Sources are a Protocol: who speaks HTTP lives elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from meshnet.domain.errors import MeshnetError, NotFound, Overloaded, WeightsError
from meshnet.domain.shards import Shard
from meshnet.weights.manifest import MANIFEST_NAME, FileEntry, Manifest, decode_manifest
from meshnet.weights.staging import FreeBytes, downloads_folder, free_bytes, pull_lock, require_space, staged
from meshnet.weights.store import READ_BYTES, Store, StoredModel, read_manifest

log = logging.getLogger(__name__)

ROUNDS = 5
"""Times that all sources are asked for one file before the fetch gives up. What came stays for the next start."""
ROUND_WAIT_S = 1.0
"""Between two rounds, growing by as much each time: 10 s in all, enough for a daemon to be restarted."""
BUSY_ROUNDS = 600
"""Ten minutes of waiting for sources that have too many readers already: a whole room of machines may join at once."""
BUSY = "has too many readers"
LOCK_POLL_S = 0.2
"""Between two looks at a file that another process of this machine fetches."""
LOCK_WAIT_S = 60.0
"""Making a model's folder takes as long as its small files do."""


class FileSource(Protocol):
    """A machine that may hold files of a model: ``meshnet.client.files.FilesClient``, or one that a test scripts."""

    @property
    def url(self) -> str: ...

    def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]: ...

    async def small(self, model_key: str, name: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """Exact weights, as an assignment names them."""

    model_key: str
    revision: str | None = None
    """None: whatever the sources have under this name."""


async def open_model(
    store: Store, wanted: Wanted, sources: Sequence[FileSource], free: FreeBytes = free_bytes
) -> StoredModel:
    """The model of these exact weights: the stored one, else a new folder with its small files. Raises WeightsError
    (other weights lie here, or no source has these), Conflict (another pull of it runs), NotFound."""
    if (store.path(wanted.model_key) / MANIFEST_NAME).is_file():
        return _same_weights(store.open(wanted.model_key), wanted)
    manifest, source = await _find_manifest(wanted, sources)
    small = [entry for entry in manifest.files if entry.kind in ("config", "tokenizer")]
    files = {entry.name: _checked(entry, await _small(source, wanted, entry.name), source) for entry in small}
    raw = await _small(source, wanted, MANIFEST_NAME)
    if decode_manifest(raw, source.url) != manifest:
        raise WeightsError(f"{source.url} changed its manifest of {wanted.model_key} meanwhile. Start again.")
    await asyncio.to_thread(_make_folder, store, wanted, {**files, MANIFEST_NAME: raw}, free)
    return _same_weights(store.open(wanted.model_key), wanted)


async def fetch_shard(
    store: Store,
    model: StoredModel,
    shard: Shard,
    sources: Sequence[FileSource],
    on_bytes: Callable[[int], None],
    free: FreeBytes = free_bytes,
    round_wait_s: float = ROUND_WAIT_S,
) -> int:
    """Bring what the shard lacks; gives the bytes that came over the network. ``on_bytes`` hears of bytes that are
    here (fetched now or earlier). Raises WeightsError naming the file and what every source said, or a full disk."""
    missing = model.missing(shard)
    if not missing:
        return 0
    folder = downloads_folder(store, model.manifest.model_key) / model.manifest.revision
    folder.mkdir(parents=True, exist_ok=True)
    require_space(store.root, sum(entry.size_bytes for entry in missing), f"{len(missing)} files", free)
    fetched = 0
    for number, entry in enumerate(missing, 1):
        fetched += await _Fetch(model, entry, folder / f"{entry.name}.part", sources, on_bytes, round_wait_s).run()
        log.info("file fetched file=%s number=%d of=%d bytes=%d", entry.name, number, len(missing), entry.size_bytes)
    with contextlib.suppress(OSError):  # Others may still fetch theirs.
        folder.rmdir()
        folder.parent.rmdir()
    return fetched


async def _find_manifest(wanted: Wanted, sources: Sequence[FileSource]) -> tuple[Manifest, FileSource]:
    said = []
    for source in sources:
        try:
            raw = await _small(source, wanted, MANIFEST_NAME)
            manifest = decode_manifest(raw, f"the manifest of {source.url}")
        except MeshnetError as error:
            said.append(f"{source.url}: {error.message}")
            continue
        if manifest.model_key == wanted.model_key and wanted.revision in (None, manifest.revision):
            return manifest, source
        said.append(f"{source.url}: its manifest is of {manifest.model_key} revision {manifest.revision}")
    raise WeightsError(
        f"No machine gives the manifest of {wanted.model_key} (revision {wanted.revision or 'any'}). "
        f"{'; '.join(said) or 'Nobody is known to have it'}.",
        code="no_source",
    )


async def _small(source: FileSource, wanted: Wanted, name: str) -> bytes:
    """Waits while the source has too many readers."""
    for _ in range(BUSY_ROUNDS):
        try:
            return await source.small(wanted.model_key, name)
        except Overloaded:
            await asyncio.sleep(ROUND_WAIT_S)
    return await source.small(wanted.model_key, name)


def _same_weights(model: StoredModel, wanted: Wanted) -> StoredModel:
    if wanted.revision not in (None, model.manifest.revision):
        raise WeightsError(
            f"{model.path} holds other weights of {wanted.model_key}: revision {model.manifest.revision}, the mesh has "
            f"{wanted.revision}. Remove them (meshnet models remove {wanted.model_key}) or use another MESHNET_HOME.",
            code="other_revision",
        )
    return model


def _checked(entry: FileEntry, data: bytes, source: FileSource) -> bytes:
    if len(data) != entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise WeightsError(f"{entry.name} of {source.url} is not what its manifest says. Ask its owner to verify it.")
    return data


def _make_folder(store: Store, wanted: Wanted, files: dict[str, bytes], free: FreeBytes) -> None:
    with pull_lock(store, wanted.model_key, LOCK_WAIT_S):
        if (store.path(wanted.model_key) / MANIFEST_NAME).is_file():
            read_manifest(store.path(wanted.model_key))
            return  # Another node of this machine was quicker.
        require_space(store.root, sum(map(len, files.values())), wanted.model_key, free)
        with staged(store, wanted.model_key) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)


class _Fetch:
    """One file: its part, its digest so far, and the sources in turn."""

    def __init__(
        self,
        model: StoredModel,
        entry: FileEntry,
        part: Path,
        sources: Sequence[FileSource],
        on_bytes: Callable[[int], None],
        round_wait_s: float,
    ) -> None:
        self._model, self._entry, self._part, self._sources = model, entry, part, sources
        self._round_wait_s = round_wait_s
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()
        self._done = 0
        self._fetched = 0

    async def run(self) -> int:
        target = self._model.path / self._entry.name
        while True:
            with _locked(self._part) as file:
                if _is_whole(target, self._entry):  # Another process of this machine was quicker.
                    self._on_bytes(self._entry.size_bytes)
                    return 0
                if file is not None:
                    await self._bring(file, target)
                    return self._fetched
            await asyncio.sleep(LOCK_POLL_S)

    async def _bring(self, file: BinaryIO, target: Path) -> None:
        await asyncio.to_thread(self._hash_what_is_here, file)
        said: dict[str, str] = {}
        attempt = busy = 0
        while attempt < ROUNDS and busy < BUSY_ROUNDS:
            for source in self._sources:
                if self._done < self._entry.size_bytes:
                    await self._from(source, file, said)
                if self._done >= self._entry.size_bytes and self._finish(file, target, source, said):
                    return
            if all(text.startswith("has") and text != BUSY for text in said.values()):
                break  # Wrong or absent everywhere: asking again changes nothing.
            is_busy = BUSY in said.values()
            attempt, busy = attempt + (not is_busy), busy + is_busy
            await asyncio.sleep(self._round_wait_s * max(attempt, 1))
        raise WeightsError(
            f"{self._entry.name} of {self._model.manifest.model_key} could not be fetched ({self._done} of "
            f"{self._entry.size_bytes} bytes are here): {'; '.join(f'{url} {text}' for url, text in said.items())}. "
            "Start again to go on.",
            code="fetch_failed",
        )

    def _hash_what_is_here(self, file: BinaryIO) -> None:
        file.seek(0)
        while chunk := file.read(READ_BYTES):
            self._digest.update(chunk)
            self._done += len(chunk)
        if self._done > self._entry.size_bytes:
            self._restart(file)
        elif self._done:
            log.info("fetch resumed file=%s have=%d of=%d", self._entry.name, self._done, self._entry.size_bytes)
        self._on_bytes(self._done)

    async def _from(self, source: FileSource, file: BinaryIO, said: dict[str, str]) -> None:
        """Append what the source sends. It may end early: the next one goes on from there."""
        stream = source.stream(self._model.manifest.model_key, self._entry.name, self._done)
        try:
            async with contextlib.aclosing(stream) as pieces:
                async for piece in pieces:
                    self._take(file, piece)
                    if self._done >= self._entry.size_bytes:
                        break
            said[source.url] = "ended early"
        except NotFound:
            said[source.url] = "has it not"
        except Overloaded:
            said[source.url] = BUSY
        except MeshnetError as error:
            said[source.url] = f"failed: {error.message}"
        except OSError as error:
            raise WeightsError(f"Cannot write {self._part}: {error.strerror}.", code="disk_full") from error

    def _take(self, file: BinaryIO, piece: bytes) -> None:
        piece = piece[: self._entry.size_bytes - self._done]
        file.write(piece)
        self._digest.update(piece)
        self._done += len(piece)
        self._fetched += len(piece)
        self._on_bytes(len(piece))

    def _finish(self, file: BinaryIO, target: Path, source: FileSource, said: dict[str, str]) -> bool:
        if self._digest.hexdigest() != self._entry.sha256:
            log.warning("fetched file is not the manifest's file=%s source=%s", self._entry.name, source.url)
            said[source.url] = f"has another {self._entry.name}: its SHA-256 is not the manifest's"
            self._on_bytes(-self._done)
            self._restart(file)
            return False
        file.flush()
        os.fsync(file.fileno())
        self._part.rename(target)
        return True

    def _restart(self, file: BinaryIO) -> None:
        file.seek(0)
        file.truncate()
        self._digest, self._done = hashlib.sha256(), 0


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[BinaryIO | None]:
    """The part, open and ours; None while another process has it. The lock goes with the file."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        if not part.exists() or os.fstat(file.fileno()).st_ino != part.stat().st_ino:
            yield None  # Renamed into the model while we opened it.
            return
        yield file
        if part.exists() and os.fstat(file.fileno()).st_size == 0:
            part.unlink()


def _is_whole(path: Path, entry: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == entry.size_bytes
