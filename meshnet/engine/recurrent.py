"""Linear-attention layers (gated delta net) in a packed step: each session's rows run through the mixer alone with
the session's own state; norms, projections of the MLP and experts of the same layer stay packed.

The state is handed in and new state is kept aside until the step is known to be good, so a step that fails for
want of memory can be run again. Nothing is derived from a cache's length: a shard of only such layers is right.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RecurrentState:
    """One session's state of one layer, in the words of the cache that transformers' mixers expect."""

    __slots__ = ("_conv", "_new_conv", "_new_recurrent", "_recurrent")

    def __init__(self) -> None:
        self._conv: Tensor | None = None
        self._recurrent: Tensor | None = None
        self._new_conv: Tensor | None = None
        self._new_recurrent: Tensor | None = None

    def begin(self) -> None:
        self._new_conv = None if self._conv is None else self._conv.clone()
        self._new_recurrent = None

    def commit(self) -> None:
        self._conv, self._recurrent = self._new_conv, self._new_recurrent

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._new_conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(self, new: Tensor, layer_idx: int, conv_kernel_size: int, **_: Any) -> Tensor:
        """(1, channels, rows) -> the same with the last columns of before in front; keeps ``conv_kernel_size``."""
        if self._new_conv is None:
            full = F.pad(new, (max(conv_kernel_size - new.shape[-1], 0), 0))
        else:
            full = torch.cat([self._new_conv, new], -1)
        self._new_conv = full[..., -conv_kernel_size:].clone()
        return full

    def update_recurrent_state(self, new: Tensor, layer_idx: int, **_: Any) -> Tensor:
        self._new_recurrent = new
        return new


class PackedMixer(nn.Module):
    """Stands where a layer's ``linear_attn`` was and runs it once per session."""

    def __init__(self, mixer: nn.Module, layer: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.layer = layer

    def forward(self, hidden_states: Tensor, *, packed: Any, **_: Any) -> Tensor:
        outputs = []
        for span in packed:
            rows = hidden_states[:, span.offset : span.offset + span.n_rows]
            state = span.kv.states[self.layer]
            state.begin()
            outputs.append(self.mixer(rows, cache=state, attention_mask=None))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
