"""Writes one model in the store's layout into a folder, and its manifest last.

Sources differ; what they write goes through here, so that the layout is said once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshnet.domain.errors import WeightsError
from meshnet.domain.shards import format_layers
from meshnet.weights import layout
from meshnet.weights.manifest import (
    FORMAT,
    MANIFEST_NAME,
    FileEntry,
    FileKind,
    Manifest,
    encode_manifest,
    revision_of,
)
from meshnet.weights.progress import Progress
from meshnet.weights.shape import ModelShape
from meshnet.weights.tensors import DTYPE_NAMES, NewTensor, write_tensors


class ModelWriter:
    """Collects a model's files in ``folder`` (which exists and is empty); ``finish`` makes it a model.

    ``total_bytes`` is what the tensors come to, for progress.
    """

    def __init__(self, folder: Path, shape: ModelShape, total_bytes: int, step: str, progress: Progress) -> None:
        self._folder, self._shape = folder, shape
        self._step, self._progress = step, progress
        self._done_bytes, self._total_bytes = 0, total_bytes
        self._files: list[FileEntry] = []
        self._dtype: str | None = None
        self._has_lm_head = False

    def layer(self, layer: int, tensors: Sequence[NewTensor]) -> None:
        self._write(layout.layer_name(layer), "layer", tensors, layer)

    def embedding(self, tensors: Sequence[NewTensor]) -> None:
        """``model.embed_tokens.weight``, whose dtype is the model's. Raises WeightsError if its shape is not
        (vocabulary, hidden)."""
        matrix = _find(tensors, "model.embed_tokens.weight")
        if len(matrix.shape) != 2 or matrix.shape[1] != self._shape.hidden_size:
            raise WeightsError(
                f"The embedding has shape {matrix.shape}, but the config says hidden_size {self._shape.hidden_size}."
            )
        self._dtype = DTYPE_NAMES.get(matrix.dtype, matrix.dtype.lower())
        self._write(layout.EMBEDDING, "embedding", tensors)

    def head(self, tensors: Sequence[NewTensor]) -> None:
        """``model.norm.weight``, and ``lm_head.weight`` unless the embedding is used for it."""
        _find(tensors, "model.norm.weight")
        self._has_lm_head = any(tensor.name == "lm_head.weight" for tensor in tensors)
        self._write(layout.HEAD, "head", tensors)

    def text_file(self, name: str, kind: FileKind, data: bytes) -> None:
        (self._folder / name).write_bytes(data)
        self._files.append(FileEntry(name, len(data), hashlib.sha256(data).hexdigest(), kind))

    def json_file(self, name: str, kind: FileKind, value: Mapping[str, Any]) -> None:
        self.text_file(name, kind, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())

    def finish(self, model_key: str, source: str) -> Manifest:
        """Write config and manifest. Raises WeightsError if a layer, the embedding or the head was not written."""
        self.json_file(layout.CONFIG, "config", {**self._shape.config, "tie_word_embeddings": not self._has_lm_head})
        self._check_whole()
        manifest = self._manifest(model_key, source)
        with (self._folder / MANIFEST_NAME).open("wb") as stream:
            stream.write(encode_manifest(manifest))
            stream.flush()
            os.fsync(stream.fileno())
        return manifest

    def _write(self, name: str, kind: FileKind, tensors: Sequence[NewTensor], layer: int | None = None) -> None:
        written = write_tensors(self._folder / name, tensors, self._copied)
        self._files.append(FileEntry(name, written.size_bytes, written.sha256, kind, layer))

    def _copied(self, n_bytes: int) -> None:
        self._done_bytes += n_bytes
        self._progress(self._step, self._done_bytes, self._total_bytes)

    def _check_whole(self) -> None:
        have = {entry.layer for entry in self._files}
        missing = [layer for layer in range(self._shape.n_layers) if layer not in have]
        if missing:
            raise WeightsError(
                f"The checkpoint has no tensors for layers {format_layers(missing)} "
                f"of the {self._shape.n_layers} its config names."
            )
        kinds = {entry.kind for entry in self._files}
        for kind in ("embedding", "head", "tokenizer"):
            if kind not in kinds:
                raise WeightsError(f"The checkpoint has no {kind}.")

    def _manifest(self, model_key: str, source: str) -> Manifest:
        shape = self._shape
        files = tuple(sorted(self._files, key=lambda entry: entry.name))
        return Manifest(
            format=FORMAT,
            model_key=model_key,
            revision=revision_of(files),
            source=source,
            architecture=shape.family.architecture,
            model_type=shape.family.model_type,
            n_layers=shape.n_layers,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            context_length=shape.context_length,
            dtype=self._dtype or "float32",
            tied_embeddings=not self._has_lm_head,
            files=files,
            has_chat_template=any(entry.name == layout.CHAT_TEMPLATE for entry in files),
            quantization=shape.quantization,
        )


def _find(tensors: Iterable[NewTensor], name: str) -> NewTensor:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise WeightsError(f"The checkpoint has no tensor {name}.")
