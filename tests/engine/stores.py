"""Stores for tests: a saved transformers folder split into the one local layout."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from meshnet.weights import layout
from meshnet.weights.manifest import FORMAT, MANIFEST_NAME, FileEntry, Manifest, encode_manifest, revision_of
from meshnet.weights.shape import read_shape
from meshnet.weights.store import Store, sha256_of
from meshnet.weights.tensors import NewTensor, Tensor, read_tensors, write_tensors

_PREFIX = re.compile(r"^(?:language_model\.model\.|model\.language_model\.|language_model\.)")


def split_folder(source: Path, root: Path, model_key: str) -> Store:
    """Split a folder of save_pretrained into ``root/model_key``. Bytes and key forms stay the checkpoint's own."""
    target = root / model_key
    target.mkdir(parents=True)
    shape = read_shape(source / layout.CONFIG)
    (target / layout.CONFIG).write_text(json.dumps(shape.config))
    for name in (layout.GENERATION_CONFIG, layout.TOKENIZER, layout.TOKENIZER_CONFIG, layout.CHAT_TEMPLATE):
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    groups: dict[str, list[Tensor]] = {}
    for file in source.glob("*.safetensors"):
        for tensor in read_tensors(file):
            name = _normal(tensor.name)
            groups.setdefault(_file_of(name), []).append(tensor)
    for name, tensors in groups.items():
        write_tensors(target / name, [NewTensor(_normal(t.name), t.dtype, t.shape, t.read) for t in tensors])
    files = tuple(_entry(file) for file in sorted(target.iterdir()))
    manifest = Manifest(
        FORMAT, model_key, revision_of(files), "test", shape.family.architecture, shape.family.model_type,
        shape.n_layers, shape.hidden_size, shape.vocab_size, shape.context_length, "float32", shape.ties_embeddings,
        files, (target / layout.CHAT_TEMPLATE).is_file(),
    )  # fmt: skip
    (target / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return Store(root)


def _normal(name: str) -> str:
    name = _PREFIX.sub("model.", name)
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def _file_of(name: str) -> str:
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer:
        return layout.layer_name(int(layer[1]))
    return layout.EMBEDDING if "embed_tokens" in name else layout.HEAD


def _entry(file: Path) -> FileEntry:
    layer = re.match(r"layer-(\d+)", file.name)
    kind = "config" if file.name in (layout.CONFIG, layout.GENERATION_CONFIG) else "tokenizer"
    if layer:
        kind = "layer"
    elif file.name in (layout.EMBEDDING, layout.HEAD):
        kind = file.name.removesuffix(".safetensors")
    return FileEntry(
        file.name,
        file.stat().st_size,
        sha256_of(file),
        kind,
        int(layer[1]) if layer else None,  # type: ignore[arg-type]
    )
