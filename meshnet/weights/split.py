"""Cuts a Hugging Face folder into the store's layout: byte ranges are copied, nothing is computed.

Memory is bounded by one copy buffer and the headers, whatever the model's size.
"""

from __future__ import annotations

from pathlib import Path

from meshnet.domain.errors import WeightsError
from meshnet.weights import layout
from meshnet.weights.checkpoint import read_checkpoint
from meshnet.weights.manifest import Manifest
from meshnet.weights.naming import place_tensor
from meshnet.weights.progress import Progress
from meshnet.weights.shape import ModelShape, read_json, read_shape
from meshnet.weights.tensors import NewTensor
from meshnet.weights.tokenizer_files import tokenizer_files
from meshnet.weights.writer import ModelWriter


def split_folder(
    folder: Path, target: Path, model_key: str, source: str, progress: Progress, tokenizer_folder: Path | None = None
) -> Manifest:
    """Write the model of ``folder`` into the empty ``target``. ``tokenizer_folder``: where tokenizer.json lies, if
    not in ``folder``. Raises WeightsError naming the file at fault."""
    shape = read_shape(folder / layout.CONFIG)
    tokenizer = tokenizer_files(tokenizer_folder or folder)
    layers, embedding, head = _sort(folder, shape)
    head = _drop_tied_head(shape, embedding, head)
    tensors = [*embedding, *head, *(tensor for layer in layers for tensor in layer)]
    writer = ModelWriter(target, shape, sum(tensor.size_bytes for tensor in tensors), "splitting", progress)
    for name, data in tokenizer.items():
        writer.text_file(name, "tokenizer", data)
    if (folder / layout.GENERATION_CONFIG).is_file():
        writer.json_file(layout.GENERATION_CONFIG, "config", read_json(folder / layout.GENERATION_CONFIG))
    writer.embedding(embedding)
    for number, layer in enumerate(layers):
        if layer:
            writer.layer(number, layer)
    writer.head(head)
    return writer.finish(model_key, source)


def _sort(folder: Path, shape: ModelShape) -> tuple[list[list[NewTensor]], list[NewTensor], list[NewTensor]]:
    layers: list[list[NewTensor]] = [[] for _ in range(shape.n_layers)]
    embedding: list[NewTensor] = []
    head: list[NewTensor] = []
    for tensor in read_checkpoint(folder):
        place = place_tensor(tensor.name, shape.n_layers, str(tensor.file))
        if place is None:
            continue
        new = NewTensor(place.name, tensor.dtype, tensor.shape, tensor.read)
        if place.layer is not None:
            layers[place.layer].append(new)
        else:
            (embedding if place.part == "embedding" else head).append(new)
    return layers, embedding, head


def _drop_tied_head(shape: ModelShape, embedding: list[NewTensor], head: list[NewTensor]) -> list[NewTensor]:
    """A tied model's file may hold lm_head too. Equal to the embedding it is dropped; unequal it counts, and the
    model is not tied: transformers decides the same way."""
    lm_head = next((tensor for tensor in head if tensor.name == "lm_head.weight"), None)
    matrix = next((tensor for tensor in embedding if tensor.name == "model.embed_tokens.weight"), None)
    if lm_head is None and not shape.ties_embeddings:
        raise WeightsError("The checkpoint has no lm_head.weight, and its config does not tie it to the embedding.")
    if lm_head is None or matrix is None or not shape.ties_embeddings or not _same_bytes(lm_head, matrix):
        return head
    return [tensor for tensor in head if tensor is not lm_head]


def _same_bytes(a: NewTensor, b: NewTensor) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return all(x == y for x, y in zip(a.pieces(), b.pieces(), strict=True))
