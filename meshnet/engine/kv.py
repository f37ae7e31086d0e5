"""Keys and values of sessions, and the pool that bounds them in bytes.

The pool counts fixed blocks of tokens. A session's blocks are one contiguous buffer, because what it needs is known
when it opens: attention then reads a plain slice, and no step copies the past. The operating system commits a
buffer's pages only as they fill, so a reservation costs address space, not memory, until its tokens exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet.domain.engine import KvUse, SessionKey
from meshnet.domain.errors import Overloaded
from meshnet.engine.recurrent import RecurrentState

BLOCK_TOKENS = 64
"""Tokens of one block: a session wastes half a block on average; smaller blocks only make odd buffer sizes."""


@dataclass(frozen=True, slots=True)
class LayerKv:
    """What one layer keeps: per token of attention, or a fixed state of linear attention."""

    layer: int
    kv_heads: int = 0
    head_dim: int = 0
    state_bytes: int = 0

    @property
    def is_attention(self) -> bool:
        return self.kv_heads > 0


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a session over a range of layers keeps, and what that costs."""

    layers: tuple[LayerKv, ...]
    itemsize: int

    @property
    def token_bytes(self) -> int:
        return sum(2 * layer.kv_heads * layer.head_dim for layer in self.layers) * self.itemsize

    def session_bytes(self, tokens: int) -> int:
        """Whole blocks for ``tokens``, plus the states that do not grow."""
        return blocks(tokens) * BLOCK_TOKENS * self.token_bytes + sum(x.state_bytes for x in self.layers)


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class SessionKv:
    """One session's buffers. Writes go to positions that are not yet counted, so a failed step leaves no trace."""

    __slots__ = ("_keys", "_values", "capacity", "states")

    def __init__(self, shape: KvShape, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = blocks(tokens) * BLOCK_TOKENS
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self.states: dict[int, RecurrentState] = {}
        for layer in shape.layers:
            if layer.is_attention:
                size = (2, layer.kv_heads, self.capacity, layer.head_dim)
                self._keys[layer.layer], self._values[layer.layer] = torch.empty(size, dtype=dtype, device=device)
            else:
                self.states[layer.layer] = RecurrentState()

    def put(self, layer: int, key: Tensor, value: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Write (kv_heads, rows, dim) at ``position``; gives all keys and values up to their end."""
        end = position + key.shape[1]
        keys, values = self._keys[layer], self._values[layer]
        keys[:, position:end] = key
        values[:, position:end] = value
        return keys[:, :end], values[:, :end]


class KvPool:
    """The budget: who reserved how much of it."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._reserved: dict[SessionKey, int] = {}

    @property
    def reserved_bytes(self) -> int:
        return sum(self._reserved.values())

    def reserve(self, key: SessionKey, size_bytes: int) -> None:
        """Raises Overloaded with what is free and what was asked."""
        free = self.budget_bytes - self.reserved_bytes
        if size_bytes > free:
            raise Overloaded(
                f"This session needs {size_bytes} bytes of KV; {free} of {self.budget_bytes} are free. "
                "Try again when others end, or give the node a larger KV budget.",
                code="kv_full",
            )
        self._reserved[key] = size_bytes

    def release(self, key: SessionKey) -> None:
        self._reserved.pop(key, None)

    def use(self) -> KvUse:
        return KvUse(self.budget_bytes, self.reserved_bytes, len(self._reserved))
