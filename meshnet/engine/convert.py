"""GGUF -> the store's layout: dequantized to float32 once, tensor by tensor.

Config, tensor names, the un-permutation of llama's query and key rows, tokenizer and chat template come through
transformers' own GGUF code, so that a converted model is the one transformers itself would load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, dequantize, get_tensor_name_map
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from meshnet.domain.errors import WeightsError
from meshnet.weights import layout
from meshnet.weights.families import find_gguf_family
from meshnet.weights.gguf_header import GgufHeader, read_gguf_header
from meshnet.weights.manifest import Manifest
from meshnet.weights.naming import place_tensor
from meshnet.weights.progress import Progress
from meshnet.weights.shape import ModelShape, shape_of
from meshnet.weights.tensors import COPY_BYTES, NewTensor
from meshnet.weights.tokenizer_files import tokenizer_files
from meshnet.weights.writer import ModelWriter

# Of the reading machine, not of the model: they would give one model two revisions.
_VOLATILE_KEYS = ("transformers_version", "_name_or_path", "_model_name_or_path", "name_or_path")
# Every token at which a GGUF says an answer may end.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def convert_gguf(file: Path, target: Path, model_key: str, source: str, progress: Progress) -> Manifest:
    """Write the GGUF ``file`` into the existing empty folder ``target``. Memory: one tensor in float32 and its
    quantized bytes. Raises WeightsError (see gguf_header) or for metadata or tensors that cannot be carried over."""
    header = read_gguf_header(file)
    find_gguf_family(header.architecture)
    _refuse_lost_metadata(file, header)
    progress("reading", 0, None)
    shape = _shape(file, header)
    writer = ModelWriter(target, shape, header.float32_bytes, "converting", progress)
    _write_tokenizer(file, header, target, writer)
    layers, embedding, head = _sort(file, header, shape)
    writer.embedding(embedding)
    for number, tensors in enumerate(layers):
        writer.layer(number, tensors)
    writer.head(head)
    return writer.finish(model_key, source)


def save_tokenizer(folder: Path, target: Path) -> None:
    """Make a tokenizer.json in ``target`` of the older tokenizer files of ``folder``. Raises WeightsError."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise WeightsError(f"Cannot read the tokenizer of {folder}: {error}") from error
    _save_fast(tokenizer, folder, target)


def _refuse_lost_metadata(file: Path, header: GgufHeader) -> None:
    scaling = header.values.get(f"{header.architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise WeightsError(
            f"{file} uses rope scaling {scaling!r}, which a GGUF does not describe fully. "
            "Pull the model's safetensors folder instead."
        )


def _shape(file: Path, header: GgufHeader) -> ModelShape:
    try:
        config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise WeightsError(f"Cannot read the config of {file}: {error}") from error
    values = {key: value for key, value in config.to_diff_dict().items() if key not in _VOLATILE_KEYS}
    head_size = header.values.get(f"{header.architecture}.attention.key_length")
    if isinstance(head_size, int):
        values["head_dim"] = head_size
    values["dtype"] = "float32"
    return shape_of(values, str(file))


def _write_tokenizer(file: Path, header: GgufHeader, scratch: Path, writer: ModelWriter) -> None:
    if not header.lengths.get("tokenizer.ggml.tokens"):
        raise WeightsError(f"{file} has no tokenizer: its header lists no tokens.")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise WeightsError(f"Cannot read the tokenizer of {file}: {error}") from error
    _save_fast(tokenizer, file, scratch)
    for name, data in tokenizer_files(scratch).items():
        writer.text_file(name, "tokenizer", data)
    writer.json_file(layout.GENERATION_CONFIG, "config", _generation_config(header))


def _save_fast(tokenizer: Any, source: Path, target: Path) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise WeightsError(f"The tokenizer of {source} has no tokenizer.json form; add one beside it.")
    tokenizer.save_pretrained(target)


def _generation_config(header: GgufHeader) -> dict[str, Any]:
    """Begin, end and padding ids as the file states them; ends is a list without doubles."""
    found = {key: header.values.get(f"tokenizer.ggml.{key}") for key in (*_END_KEYS, "bos_token_id")}
    ends = list(dict.fromkeys(found[key] for key in _END_KEYS if isinstance(found[key], int)))
    config: dict[str, Any] = {"eos_token_id": ends} if ends else {}
    if isinstance(found["bos_token_id"], int):
        config["bos_token_id"] = found["bos_token_id"]
    padding = header.values.get("tokenizer.ggml.padding_token_id")
    if isinstance(padding, int):
        config["pad_token_id"] = padding
    return config


def _sort(
    file: Path, header: GgufHeader, shape: ModelShape
) -> tuple[list[list[NewTensor]], list[NewTensor], list[NewTensor]]:
    """Every tensor under its name in the store, checked to be exactly those the model has, in its shapes."""
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=shape.config)
    model = _meta_model(shape)
    wanted: Mapping[str, torch.Tensor] = model.state_dict()
    names = _gguf_names(header.architecture, shape.n_layers, wanted)
    layers: list[list[NewTensor]] = [[] for _ in range(shape.n_layers)]
    embedding: list[NewTensor] = []
    head: list[NewTensor] = []
    seen: set[str] = set()
    for tensor in GGUFReader(file).tensors:
        name = names.get(tensor.name)
        if name is None:
            raise WeightsError(f"{file} holds tensor {tensor.name}, which has no place in {shape.family.architecture}.")
        place = place_tensor(name, shape.n_layers, str(file))
        new = _new_tensor(tensor, name, tuple(wanted[name].shape), processor)
        seen.add(name)
        if place is not None:
            parts = {"embedding": embedding, "head": head, "layer": layers[place.layer or 0]}
            parts[place.part].append(new)
    _check_all_seen(file, shape, set(wanted), seen)
    return layers, embedding, head


def _gguf_names(architecture: str, n_layers: int, wanted: Iterable[str]) -> dict[str, str]:
    """GGUF tensor name -> the model's, by gguf's own table."""
    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(arch, n_layers)
    names: dict[str, str] = {}
    for name in wanted:
        stem, _, suffix = name.rpartition(".")
        gguf_name = table.get_name(stem)
        if gguf_name is not None:
            names[f"{gguf_name}.{suffix}"] = name
    return names


def _new_tensor(tensor: ReaderTensor, name: str, wanted: tuple[int, ...], processor: TensorProcessor) -> NewTensor:
    found = tuple(int(size) for size in reversed(tensor.shape))
    if found != wanted:
        raise WeightsError(f"Tensor {tensor.name} has shape {found}, but the model's config asks for {wanted}.")

    def pieces() -> Iterator[bytes]:
        weights = processor.process(weights=dequantize(tensor.data, tensor.tensor_type), name=tensor.name).weights
        data = np.ascontiguousarray(weights, dtype="<f4").reshape(-1)
        step = COPY_BYTES // data.itemsize
        for start in range(0, len(data), step):
            yield data[start : start + step].tobytes()

    return NewTensor(name, "F32", wanted, pieces)


def _meta_model(shape: ModelShape) -> torch.nn.Module:
    """The model without memory: only names and shapes of its tensors are read."""
    config = transformers.AutoConfig.for_model(**shape.config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def _check_all_seen(file: Path, shape: ModelShape, wanted: set[str], seen: set[str]) -> None:
    missing = wanted - seen
    if shape.ties_embeddings:
        missing.discard("lm_head.weight")
    missing = {name for name in missing if not re.search(r"rotary_emb", name)}
    if missing:
        raise WeightsError(f"{file} lacks tensor {min(missing)} ({len(missing)} missing).")
