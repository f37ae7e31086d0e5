"""The manifest of one stored model: which files it has, how large, with which SHA-256, and what the model is.

It names exact weights: ``revision`` is a hash over the files' names and contents alone, so the same source
gives the same revision on every machine. A manifest also comes from other machines, so reading one checks
every field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from meshnet.domain.errors import InvalidRequest, WeightsError
from meshnet.domain.ids import is_model_key
from meshnet.domain.shards import MAX_LAYERS, Shard

MANIFEST_NAME = "manifest.json"
FORMAT = 1
"""Version of the layout on disk. A reader refuses others by name instead of guessing."""

MOST_BYTES = 1 << 50
"""Of one file: as much as the wire's messages can say."""
MOST_ELEMENTS = 1 << 31
"""Of a row, a vocabulary, a context: a thousand times what models have."""

FileKind = Literal["config", "tokenizer", "layer", "embedding", "head"]

# Names come from other machines too and become paths: one plain component, never hidden, never a parent.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a model. ``layer`` is set for kind ``layer`` only."""

    name: str
    size_bytes: int
    sha256: str
    kind: FileKind
    layer: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """What a stored model is. Sizes in elements; ``dtype`` is the stored tensors' (GGUF becomes float32)."""

    format: int
    model_key: str
    revision: str
    source: str
    """Where it came from, for people; not part of the revision."""
    architecture: str
    """The text model's class, ``LlamaForCausalLM``."""
    model_type: str
    """The text model's own type, ``gemma3_text`` where the checkpoint said ``gemma3``."""
    n_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str
    tied_embeddings: bool
    files: tuple[FileEntry, ...]
    has_chat_template: bool
    quantization: str | None = None
    """Quantization of the stored tensors (``fp8``, ``mxfp4``), or None."""

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    def files_for(self, shard: Shard) -> tuple[FileEntry, ...]:
        """What a node with ``shard`` must hold: config and tokenizer always, its layers, the embedding on the
        head (and on a tail that shares it), norm and lm_head on the tail. Raises InvalidRequest beyond the last
        layer."""
        if shard.end >= self.n_layers:
            raise InvalidRequest(
                f"{self.model_key} has layers 0-{self.n_layers - 1}; {shard} reaches beyond them.",
                param="shard",
            )
        is_tail = shard.end == self.n_layers - 1
        needs_embedding = shard.start == 0 or (is_tail and self.tied_embeddings)

        def is_needed(entry: FileEntry) -> bool:
            match entry.kind:
                case "config" | "tokenizer":
                    return True
                case "layer":
                    return entry.layer is not None and entry.layer in shard
                case "embedding":
                    return needs_embedding
                case "head":
                    return is_tail

        return tuple(entry for entry in self.files if is_needed(entry))


def revision_of(files: Iterable[FileEntry]) -> str:
    """First 16 hex digits of SHA-256 over the sorted (name, sha256) pairs: no time, no path, no machine in it."""
    digest = hashlib.sha256()
    for name, sha256 in sorted((entry.name, entry.sha256) for entry in files):
        digest.update(f"{name}\0{sha256}\n".encode())
    return digest.hexdigest()[:16]


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Bytes -> a checked Manifest. Raises WeightsError naming ``where`` and the field at fault."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise WeightsError(f"{where} is no manifest: {error}. Remove the model and pull it again.") from error
    problem = _first_problem(manifest)
    if problem is not None:
        raise WeightsError(f"{where}: {problem}. Remove the model and pull it again.")
    return manifest


def _first_problem(manifest: Manifest) -> str | None:
    if manifest.format != FORMAT:
        return f"its format is {manifest.format}, this meshnet reads {FORMAT}"
    if not is_model_key(manifest.model_key):
        return f"{manifest.model_key!r} is no model name"
    if not 1 <= manifest.n_layers <= MAX_LAYERS:
        return f"n_layers is {manifest.n_layers}"
    sizes = (manifest.hidden_size, manifest.vocab_size, manifest.context_length)
    if not 1 <= min(sizes) <= max(sizes) <= MOST_ELEMENTS:
        return f"hidden_size, vocab_size and context_length must be positive, and {MOST_ELEMENTS} at most"
    for entry in manifest.files:
        if not _FILE_NAME.fullmatch(entry.name) or entry.name == MANIFEST_NAME:
            return f"{entry.name!r} is no file name of a model"
        if not 0 <= entry.size_bytes <= MOST_BYTES or not _SHA256.fullmatch(entry.sha256):
            return f"size or hash of {entry.name} is malformed"
        if (entry.kind == "layer") != (entry.layer is not None):
            return f"{entry.name} says kind {entry.kind} and layer {entry.layer}"
    return _layers_problem(manifest)


def _layers_problem(manifest: Manifest) -> str | None:
    names = [entry.name for entry in manifest.files]
    if len(set(names)) != len(names):
        return "a file is listed twice"
    layers = sorted(entry.layer for entry in manifest.files if entry.layer is not None)
    if layers != list(range(manifest.n_layers)):
        return f"it lists {len(layers)} layer files for {manifest.n_layers} layers"
    for kind in ("embedding", "head"):
        if sum(entry.kind == kind for entry in manifest.files) != 1:
            return f"it must list exactly one {kind} file"
    if revision_of(manifest.files) != manifest.revision:
        return f"revision {manifest.revision} is not that of its files ({revision_of(manifest.files)})"
    return None
