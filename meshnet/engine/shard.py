"""A loaded shard: the layers start..end of a model, the embedding on the head, norm and lm_head on the tail.

A later start or an earlier end is not another object: a step names its range, the layers keep their own numbers, and
a session's KV belongs to its own range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from meshnet.domain.engine import ITEMSIZE, ModelFacts
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.shards import Shard
from meshnet.engine.attention import Span
from meshnet.engine.capacity import kv_of_layers
from meshnet.engine.dequantize import require_known
from meshnet.engine.families import Embedding, Head, Rotary, build_on_meta, layer_type, text_config
from meshnet.engine.kv import KvShape
from meshnet.engine.lean import make_lean
from meshnet.engine.loading import Opener, load_files, open_bytes, require_loaded
from meshnet.engine.recurrent import PackedMixer
from meshnet.engine.weight_layout import Fitter
from meshnet.weights.store import StoredModel

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class LoadedShard:
    """Weights and the arithmetic of a range of layers. Holds no session."""

    facts: ModelFacts
    shard: Shard
    config: PreTrainedConfig
    device: torch.device
    layers: list[nn.Module]
    rotary: Rotary
    embedding: Embedding | None
    head: Head | None

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.facts.dtype]

    @property
    def last_layer(self) -> int:
        return self.facts.n_layers - 1

    def kv_shape(self, start_layer: int, end_layer: int) -> KvShape:
        itemsize = ITEMSIZE[self.facts.dtype]
        return KvShape(kv_of_layers(self.config, start_layer, end_layer, itemsize), itemsize)

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """(1, rows, hidden). Raises InvalidRequest on a shard without the first layer, or for an unknown token."""
        if self.embedding is None:
            raise InvalidRequest(f"layers {self.shard} do not start at 0: they take rows, not token ids.")
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.facts.vocab_size:
            raise InvalidRequest(f"a token id is outside 0..{self.facts.vocab_size - 1}.")
        return self.embedding(torch.tensor([token_ids], device=self.device))

    def run(
        self, rows: Tensor, spans: Sequence[Span], lengths: Sequence[int], start_layer: int, end_layer: int
    ) -> Tensor:
        """(1, rows, hidden) through the layers start..end. ``lengths``: the final length of each span's sequence."""
        tables = self.rotary.tables(
            rows, [(s.position, s.n_rows, length) for s, length in zip(spans, lengths, strict=True)]
        )
        by_type = None not in tables
        first = self.shard.start
        for number in range(start_layer, end_layer + 1):
            table = tables[layer_type(self.config, number) if by_type else None]
            rows = self.layers[number - first](
                rows, position_embeddings=table, attention_mask=None, position_ids=None, packed=spans
            )
        return rows


def load_shard(
    model: StoredModel,
    shard: Shard,
    dtype: str = "float32",
    device: str = "cpu",
    opener: Opener = open_bytes,
) -> LoadedShard:
    """Read the files of ``shard`` and nothing else. Raises WeightsError (damaged or unsupported) or InvalidRequest."""
    manifest = model.manifest
    manifest.files_for(shard)  # Raises when the shard reaches beyond the model.
    target, torch_dtype = torch.device(device), TORCH_DTYPES[dtype]
    quantization = model.config.get("quantization_config")
    require_known(quantization)
    config = text_config(model.config)
    whole = build_on_meta(config, torch_dtype)
    is_head, is_tail = shard.start == 0, shard.end == manifest.n_layers - 1
    paths = [model.layer_file(layer) for layer in range(shard.start, shard.end + 1)]
    if is_head or (is_tail and config.tie_word_embeddings):
        paths.append(model.embedding_file())
    if is_tail:
        paths.append(model.head_file())
    load_files(whole, paths, torch_dtype, target, opener, quantization)
    inner: Any = whole.model
    layers = [_finish_layer(inner.layers[layer], layer) for layer in range(shard.start, shard.end + 1)]
    embedding = Embedding.of(whole, config, target) if is_head else None
    head = Head.of(whole, config) if is_tail else None
    if embedding is not None:
        require_loaded(embedding.module, "the embedding")
    if head is not None:
        require_loaded(nn.ModuleList([head.norm, head.lm_head]), "the head")
    _lay_out(layers, embedding, head)
    facts = ModelFacts(
        manifest.model_key,
        manifest.revision,
        manifest.n_layers,
        manifest.hidden_size,
        manifest.vocab_size,
        manifest.context_length,
        dtype,
    )
    return LoadedShard(facts, shard, config, target, layers, Rotary.of(whole, config, target), embedding, head)


def _finish_layer(layer: nn.Module, number: int) -> nn.Module:
    require_loaded(layer, f"layer {number}")
    mixer = getattr(layer, "linear_attn", None)
    if mixer is not None:
        layer.linear_attn = PackedMixer(mixer, number)
    return make_lean(layer)


def _lay_out(layers: list[nn.Module], embedding: Embedding | None, head: Head | None) -> None:
    fitter = Fitter()
    for layer in layers:
        fitter.fit_children(layer)
    if head is None or not isinstance(head.lm_head, nn.Linear):
        return
    is_shared = embedding is not None and embedding.module.weight is head.lm_head.weight
    head.lm_head = fitter.fit(head.lm_head)
    # A tied matrix stays one, whichever way it lies. Packed, it cannot be looked up in: the embedding keeps its own.
    if is_shared and embedding is not None and isinstance(head.lm_head, nn.Linear):
        embedding.module.weight = head.lm_head.weight
