"""Faster stand-ins for modules whose arithmetic is known exactly: sibling projections run as one matrix product, and
queries and keys are rotated together. What is not recognized stays transformers' own.

Measured on one row (one thread, SmolLM2-135M): a tenth of a step, nearly all of it calls that are not made.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshnet.engine.attention import packed_attention

_PLAIN_NORMS = frozenset(
    {"LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm",
     "Phi3RMSNorm", "SmolLM3RMSNorm", "GraniteRMSNorm"}
)  # fmt: skip
"""``weight * x / rms(x)`` and nothing else; Gemma's (1 + weight) and gated norms are not among them."""
_PLAIN_ATTENTION = frozenset(
    {"LlamaAttention", "MistralAttention", "MixtralAttention", "Qwen2Attention", "Qwen3Attention", "Qwen3MoeAttention",
     "GraniteAttention"}
)  # fmt: skip
"""Projections, optional norms per head, rotation of whole heads in halves, attention, output projection."""
_PLAIN_MLP = frozenset(
    {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "Qwen3MoeMLP", "GraniteMLP", "SmolLM3MLP", "Olmo2MLP"}
)
"""``down(act(gate(x)) * up(x))``."""


def make_lean(layer: nn.Module) -> nn.Module:
    """Exchange the recognized modules of a loaded decoder layer, in place. Weights are joined, not kept twice."""
    for name, child in list(layer.named_children()):
        kind = type(child).__name__
        if kind in _PLAIN_NORMS:
            setattr(layer, name, LeanNorm(child))
        elif kind in _PLAIN_ATTENTION:
            setattr(layer, name, LeanAttention(child))
        elif kind in _PLAIN_MLP:
            setattr(layer, name, LeanMlp(child))
    return layer


class LeanNorm(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.shape = tuple(norm.weight.shape)
        self.epsilon = norm.variance_epsilon

    def forward(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, self.shape, self.weight, self.epsilon)


class LeanMlp(nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up = _joined([mlp.gate_proj, mlp.up_proj])
        self.down = mlp.down_proj
        self.act = mlp.act_fn

    def forward(self, rows: Tensor) -> Tensor:
        gate, up = self.gate_up(rows).chunk(2, -1)
        return self.down(self.act(gate) * up)


class LeanAttention(nn.Module):
    """The attention of a plain layer on packed rows; see ``packed_attention`` for ``packed``."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.layer_idx: int = attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.sliding_window = _window(attention)
        self.qkv = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.output = attention.o_proj
        self.heads = attention.q_proj.out_features // self.head_dim
        self.kv_heads = attention.k_proj.out_features // self.head_dim
        self.q_norm = _norm(getattr(attention, "q_norm", None))
        self.k_norm = _norm(getattr(attention, "k_norm", None))

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], packed: Any, **_: Any
    ) -> tuple[Tensor, None]:
        rows = hidden_states.shape[1]
        # (1, rows, heads + 2 * kv_heads, head_dim)
        joined = self.qkv(hidden_states).view(1, rows, -1, self.head_dim)
        turning = self.heads + self.kv_heads
        turned = joined[:, :, :turning]
        if self.q_norm is not None and self.k_norm is not None:
            turned = torch.cat([self.q_norm(turned[:, :, : self.heads]), self.k_norm(turned[:, :, self.heads :])], 2)
        turned = _rotate(turned, *position_embeddings).transpose(1, 2)
        out, _none = packed_attention(
            self,
            turned[:, : self.heads],
            turned[:, self.heads :],
            joined[:, :, turning:].transpose(1, 2),
            None,
            packed=packed,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
        )
        return self.output(out.reshape(1, rows, -1)), None


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(1, rows, heads, dim) turned by the angles of (1, rows, dim), halves against each other."""
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), -1)
    return (heads * cos.unsqueeze(2)).addcmul_(turned, sin.unsqueeze(2))


def _window(attention: Any) -> int | None:
    """As the family passes it to its attention function: its own, else the config's where the family has one."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window
    return getattr(attention.config, "sliding_window", None)


def _norm(norm: Any) -> nn.Module | None:
    if norm is None:
        return None
    return LeanNorm(norm) if type(norm).__name__ in _PLAIN_NORMS else norm


def _joined(parts: list[nn.Linear]) -> nn.Linear:
    """One projection that gives the parts' outputs one behind another."""
    weight = torch.cat([part.weight.data for part in parts])
    has_bias = parts[0].bias is not None
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if has_bias:
        joined.bias = nn.Parameter(torch.cat([part.bias.data for part in parts]), requires_grad=False)
    return joined
