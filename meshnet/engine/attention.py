"""Packed attention: the rows of all sessions lie one behind another in one row of a batch of one; each session's
keys and values go to its own buffer and its rows attend to that buffer alone. No padding, no masks between sessions;
decode and chunks of prefill mix freely, and one session alone is the same code.

The step's sessions reach the attention function through the layers' keyword arguments (``packed``), so nothing here
is global but the function's name in transformers' registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from meshnet.engine.kv import SessionKv

IMPLEMENTATION = "meshnet_packed"


def register_attention() -> None:
    """Make the packed function known to transformers; calling it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, packed_attention)


class Span:
    """One session's rows in a packed step: ``n_rows`` from ``offset``, at positions ``position..``."""

    __slots__ = ("_masks", "kv", "n_rows", "offset", "position")

    def __init__(self, kv: SessionKv, offset: int, n_rows: int, position: int) -> None:
        self.kv, self.offset, self.n_rows, self.position = kv, offset, n_rows, position
        self._masks: dict[int, Tensor] = {}

    def mask(self, window: int, device: torch.device) -> Tensor:
        """(n_rows, position + n_rows) bool, True where a row may look; ``window`` 0 is unlimited. Made once a step."""
        found = self._masks.get(window)
        if found is None:
            rows = torch.arange(self.position, self.position + self.n_rows, device=device)[:, None]
            columns = torch.arange(self.position + self.n_rows, device=device)[None]
            found = columns <= rows
            if window:
                found &= columns > rows - window
            self._masks[window] = found
        return found


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Sequence[Span],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, rows, dim), key and value (1, kv_heads, rows, dim) -> (1, rows, heads, dim)."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    outputs = []
    for span in packed:
        end = span.offset + span.n_rows
        keys, values = span.kv.put(layer, key[0, :, span.offset : end], value[0, :, span.offset : end], span.position)
        rows = query if len(packed) == 1 else query[:, :, span.offset : end]
        scale = scaling if scaling is not None else rows.shape[-1] ** -0.5
        if softcap is None and s_aux is None:
            outputs.append(_attend(span, rows, keys, values, scale, sliding_window or 0))
        else:
            outputs.append(_attend_by_hand(span, rows, keys, values, scale, sliding_window or 0, softcap, s_aux))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), None


def _attend(span: Span, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
    _, heads, rows, dim = query.shape
    kv_heads = keys.shape[0]
    if rows == 1:
        if window and keys.shape[1] > window:
            keys, values = keys[:, -window:], values[:, -window:]
        # The query heads that share a key head become its rows: no repeated keys, and no mask is needed.
        grouped = query.reshape(1, kv_heads, heads // kv_heads, dim)
        out = F.scaled_dot_product_attention(grouped, keys[None], values[None], scale=scale)
        return out.reshape(1, 1, heads, dim)
    starts_whole = span.position == 0 and not (window and rows > window)
    out = F.scaled_dot_product_attention(
        query,
        keys[None],
        values[None],
        attn_mask=None if starts_whole else span.mask(window, query.device),
        is_causal=starts_whole,
        scale=scale,
        enable_gqa=kv_heads != heads,
    )
    return out.transpose(1, 2)


def _attend_by_hand(
    span: Span,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Families whose scores are capped or share their softmax with a sink per head (gpt_oss)."""
    _, heads, rows, dim = query.shape
    kv_heads, length, _ = keys.shape
    groups = heads // kv_heads
    grouped = query[0].reshape(kv_heads, groups * rows, dim)
    scores = (grouped @ keys.transpose(1, 2) * scale).view(kv_heads, groups, rows, length)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~span.mask(window, query.device), torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(kv_heads, groups, 1, 1).expand(-1, -1, rows, -1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)[..., :length]
    out = weights.reshape(kv_heads, groups * rows, length) @ values
    return out.view(1, heads, rows, dim).transpose(1, 2)
