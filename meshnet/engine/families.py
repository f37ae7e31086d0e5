"""What the engine must know of a family beyond its layers: config, depth, embedding, rotary positions, logits.

Everything else of a family is in its transformers modules, which are used as they are. Layers are built from the
whole model's config with their own numbers (on the meta device, where a model of any depth costs nothing), so
per-layer lists and patterns (``layer_types``, ``no_rope_layers``, ``mlp_only_layers``, ``decoder_sparse_step``)
mean in a shard what they mean in the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from meshnet.domain.errors import WeightsError
from meshnet.engine.attention import IMPLEMENTATION, register_attention
from meshnet.weights.families import find_family

RotaryTables = dict[str | None, tuple[Tensor, Tensor]]
"""cos and sin of shape (1, rows, rotary_dim), by layer type where a family has several tables, else under None."""

_LENGTH_DEPENDENT_ROPE = frozenset({"longrope", "dynamic"})
"""Rope types whose frequencies depend on how long the whole sequence becomes."""


def text_config(raw: dict[str, Any]) -> PreTrainedConfig:
    """A stored config.json as a transformers config of the text model. Raises WeightsError for other families."""
    model_type = str(raw.get("model_type"))
    find_family(model_type)
    # Weights arrive dequantized, so that the modules are the plain ones.
    fields = {key: value for key, value in raw.items() if key not in ("model_type", "quantization_config")}
    try:
        return AutoConfig.for_model(model_type, **fields).get_text_config()
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"The config of this {model_type} model is not usable: {error}") from error


def build_on_meta(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The whole model without any weights, its attention replaced by the packed one."""
    register_attention()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=IMPLEMENTATION)
    return model.eval().requires_grad_(False)


def layer_type(config: PreTrainedConfig, layer: int) -> str:
    types = getattr(config, "layer_types", None)
    return types[layer] if types else "full_attention"


@dataclass(slots=True)
class Rotary:
    """The family's rotary embedding, rebuilt with real buffers on ``device``."""

    module: nn.Module
    layer_types: tuple[str | None, ...]
    is_length_dependent: bool

    @classmethod
    def of(cls, model: PreTrainedModel, config: PreTrainedConfig, device: torch.device) -> Rotary:
        inner: Any = model.model
        module = type(inner.rotary_emb)(config=config).to(device)
        by_type = isinstance(getattr(module, "rope_type", None), dict)
        types: tuple[str | None, ...] = tuple(sorted(set(config.layer_types))) if by_type else (None,)
        kinds = set(module.rope_type.values()) if by_type else {getattr(module, "rope_type", "default")}
        return cls(module, types, bool(kinds & _LENGTH_DEPENDENT_ROPE))

    def tables(self, like: Tensor, spans: list[tuple[int, int, int]]) -> RotaryTables:
        """cos and sin for the rows of ``spans`` (position, n_rows, final length of the sequence), one after another.

        Where frequencies depend on the length, a sequence takes those of its final length from its first row on,
        so that cached keys and new queries agree, on every hop and whatever the size of a chunk.
        """
        if not self.is_length_dependent:
            parts = [torch.arange(position, position + rows) for position, rows, _ in spans]
            positions = (parts[0] if len(parts) == 1 else torch.cat(parts))[None].to(like.device)
            return {kind: self._call(like, positions, kind) for kind in self.layer_types}
        pieces = [self._of_length(like, *span) for span in spans]
        return {
            kind: (
                torch.cat([piece[kind][0] for piece in pieces], 1),
                torch.cat([piece[kind][1] for piece in pieces], 1),
            )
            for kind in self.layer_types
        }

    def _of_length(self, like: Tensor, position: int, rows: int, length: int) -> RotaryTables:
        last = torch.tensor([max(length - 1, position + rows - 1)])
        positions = torch.cat([torch.arange(position, position + rows), last])[None].to(like.device)
        # A dynamic table remembers the longest sequence it saw; position 0 alone makes it forget.
        self._call(like, positions[:, :1] * 0, self.layer_types[0])
        tables: RotaryTables = {}
        for kind in self.layer_types:
            cos, sin = self._call(like, positions, kind)
            tables[kind] = (cos[:, :-1], sin[:, :-1])
        return tables

    def _call(self, like: Tensor, positions: Tensor, kind: str | None) -> tuple[Tensor, Tensor]:
        return self.module(like, positions) if kind is None else self.module(like, positions, kind)


@dataclass(slots=True)
class Embedding:
    """Token ids -> (1, rows, hidden), with the family's scale."""

    module: nn.Module
    multiplier: float

    @classmethod
    def of(cls, model: PreTrainedModel, config: PreTrainedConfig, device: torch.device) -> Embedding:
        module: Any = model.get_input_embeddings()
        scale = getattr(module, "scalar_embed_scale", None)
        if scale is not None:  # A buffer that no checkpoint holds: it was left on meta.
            module.embed_scale = torch.tensor(scale, device=device)
        return cls(module, float(getattr(config, "embedding_multiplier", 1.0)))

    def __call__(self, token_ids: Tensor) -> Tensor:
        rows = self.module(token_ids)
        return rows if self.multiplier == 1.0 else rows * self.multiplier


@dataclass(slots=True)
class Head:
    """Final norm and lm_head: rows (1, rows, hidden) -> float32 logits (rows, vocab)."""

    norm: nn.Module
    lm_head: nn.Module
    divisor: float
    softcap: float | None

    @classmethod
    def of(cls, model: PreTrainedModel, config: PreTrainedConfig) -> Head:
        inner: Any = model.model
        lm_head: Any = model.lm_head
        if config.tie_word_embeddings:
            lm_head.weight = inner.embed_tokens.weight
        divisor = float(getattr(config, "logits_scaling", 1.0))
        return cls(inner.norm, lm_head, divisor, getattr(config, "final_logit_softcapping", None))

    def __call__(self, rows: Tensor) -> Tensor:
        logits = self.lm_head(self.norm(rows))[0]
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits.float()
