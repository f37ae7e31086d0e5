"""The store: every model pulled to this machine, one folder each, always in the one layout of ``layout.py``.

A folder counts as a model only once its manifest is there; pulls write elsewhere and rename (``staging.py``).
A node that fetched only its own layers has a partial model: it opens, and answers for the shards it can
serve.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshnet.domain.errors import NotFound, WeightsError
from meshnet.domain.ids import is_model_key
from meshnet.domain.shards import Shard
from meshnet.weights import layout
from meshnet.weights.manifest import MANIFEST_NAME, FileEntry, Manifest, decode_manifest

READ_BYTES = 1 << 20
"""One read while hashing or copying: larger gains nothing and costs memory on small machines."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model of the store: its manifest, its config and where its files lie."""

    manifest: Manifest
    path: Path
    config: dict[str, Any] = field(repr=False)

    def layer_file(self, layer: int) -> Path:
        return self.path / layout.layer_name(layer)

    def embedding_file(self) -> Path:
        return self.path / layout.EMBEDDING

    def head_file(self) -> Path:
        return self.path / layout.HEAD

    def shard_bytes(self, shard: Shard) -> int:
        """Bytes of weights a node with ``shard`` reads (layers, embedding and head as it needs them)."""
        kinds = ("layer", "embedding", "head")
        return sum(entry.size_bytes for entry in self.manifest.files_for(shard) if entry.kind in kinds)

    def missing(self, shard: Shard) -> tuple[FileEntry, ...]:
        """Files the shard needs that are not here, or have another size."""
        return tuple(e for e in self.manifest.files_for(shard) if _size(self.path / e.name) != e.size_bytes)

    def verify(self, shard: Shard | None = None) -> None:
        """Read and hash every file of the shard (None: of the whole model). Raises WeightsError naming the first
        bad file with the expected and found size or hash."""
        entries = self.manifest.files if shard is None else self.manifest.files_for(shard)
        for entry in entries:
            _verify_file(self.path / entry.name, entry)


@dataclass(frozen=True, slots=True)
class Store:
    """The models under ``root``. Holds no state of its own: the folders are the truth."""

    root: Path

    def path(self, model_key: str) -> Path:
        return self.root / model_key

    def models(self) -> list[Manifest]:
        """Manifests of every stored model, by name. A folder with an unreadable manifest is left out."""
        return [model for model, _ in self._scan() if model is not None]

    def unreadable(self) -> list[str]:
        """What is wrong with folders that look like models and are none."""
        return [problem for _, problem in self._scan() if problem]

    def open(self, model_key: str) -> StoredModel:
        """Raises NotFound (with what exists) or WeightsError (its manifest or config is damaged)."""
        folder = self.path(model_key)
        if not is_model_key(model_key) or not (folder / MANIFEST_NAME).is_file():
            names = ", ".join(m.model_key for m in self.models()) or "none"
            raise NotFound(f"No model {model_key!r} in {self.root}. Stored: {names}. Get it with: meshnet models pull")
        manifest = read_manifest(folder)
        if manifest.model_key != model_key:
            raise WeightsError(f"{folder} says it holds {manifest.model_key!r}. Remove it and pull the model again.")
        return StoredModel(manifest, folder, _read_config(folder / layout.CONFIG))

    def remove(self, model_key: str) -> int:
        """Delete a model, damaged ones too; gives the bytes freed. Raises NotFound with what exists."""
        folder = self.path(model_key)
        if not is_model_key(model_key) or not folder.is_dir():
            names = ", ".join(m.model_key for m in self.models()) or "none"
            raise NotFound(f"No model {model_key!r} in {self.root}. Stored: {names}.")
        freed = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        # The manifest goes first: an interrupted removal must not look like a model.
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(folder)
        return freed

    def _scan(self) -> list[tuple[Manifest | None, str]]:
        if not self.root.is_dir():
            return []
        found: list[tuple[Manifest | None, str]] = []
        for folder in sorted(self.root.iterdir()):
            if not is_model_key(folder.name) or not (folder / MANIFEST_NAME).is_file():
                continue
            try:
                found.append((read_manifest(folder), ""))
            except WeightsError as error:
                found.append((None, error.message))
        return found


def read_manifest(folder: Path) -> Manifest:
    """The checked manifest of a model folder. Raises WeightsError."""
    file = folder / MANIFEST_NAME
    try:
        data = file.read_bytes()
    except OSError as error:
        raise WeightsError(f"Cannot read {file}: {error.strerror}.") from error
    return decode_manifest(data, str(file))


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise WeightsError(f"Cannot read {file}: {error.strerror}. Remove the model and pull it again.") from error
    except ValueError as error:
        raise WeightsError(f"{file} is not JSON: {error}. Remove the model and pull it again.") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{file} is not a JSON object. Remove the model and pull it again.")
    return config


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _verify_file(file: Path, entry: FileEntry) -> None:
    again = "Remove the model and pull it again."
    found = _size(file)
    if found < 0:
        raise WeightsError(f"{file} is missing ({entry.size_bytes} bytes expected). {again}")
    if found != entry.size_bytes:
        raise WeightsError(f"{file} is damaged: expected {entry.size_bytes} bytes, found {found}. {again}")
    digest = sha256_of(file)
    if digest != entry.sha256:
        raise WeightsError(f"{file} is damaged: expected SHA-256 {entry.sha256}, found {digest}. {again}")


def sha256_of(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
