"""Tensor names: whatever root a checkpoint puts its text model under, the store knows one.

``model.embed_tokens.…``, ``model.layers.N.…``, ``model.norm.…``, ``lm_head.…``. Behind those, names stay the
checkpoint's own (per-expert keys too): the engine loads them through transformers' own conversions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from meshnet.domain.errors import WeightsError

Part = Literal["layer", "embedding", "head"]

_ROOT = r"(?:model\.language_model\.model\.|language_model\.model\.|model\.language_model\.|model\.|)"
_LAYER = re.compile(_ROOT + r"layers\.(\d{1,6})\.(.+)")
_EMBEDDING = re.compile(_ROOT + r"(embed_tokens\..+)")
_NORM = re.compile(_ROOT + r"(norm\..+)")
_LM_HEAD = re.compile(r"(?:model\.language_model\.|language_model\.|model\.|)(lm_head\..+)")
# Parts a text shard never runs: vision and audio towers, their projectors, multi-token-prediction heads, and
# rotary tables that some old checkpoints saved though they follow from the config.
_SKIPPED = re.compile(
    r"(?:.*\.)?(?:vision_tower|vision_model|visual|audio_tower|multi_modal_projector|embed_vision|mtp)\..*"
    r"|.*rotary_emb\.inv_freq"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor goes: the part, its layer (part ``layer`` only) and its name in the store."""

    part: Part
    name: str
    layer: int | None = None


def place_tensor(name: str, n_layers: int, where: str) -> Place | None:
    """None: not part of the text model. Raises WeightsError for a name that fits nowhere: dropping it would make a
    model that speaks nonsense."""
    if _SKIPPED.fullmatch(name):
        return None
    if match := _LAYER.fullmatch(name):
        layer = int(match[1])
        # Extra layers behind the last one are multi-token-prediction blocks.
        return Place("layer", f"model.layers.{layer}.{match[2]}", layer) if layer < n_layers else None
    if match := _EMBEDDING.fullmatch(name):
        return Place("embedding", f"model.{match[1]}")
    if match := _NORM.fullmatch(name):
        return Place("head", f"model.{match[1]}")
    if match := _LM_HEAD.fullmatch(name):
        return Place("head", match[1])
    raise WeightsError(f"{where} holds tensor {name}, which belongs to no layer, embedding, norm or lm_head.")
