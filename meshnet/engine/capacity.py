"""What layers cost: bytes of KV per token and of fixed state, read from a config through optimum where it knows the
family, else through transformers."""

from __future__ import annotations

from optimum.utils import NormalizedConfigManager
from transformers import PreTrainedConfig

from meshnet.engine.families import layer_type
from meshnet.engine.kv import LayerKv

LINEAR_ATTENTION = "linear_attention"


def kv_of_layers(config: PreTrainedConfig, start_layer: int, end_layer: int, itemsize: int) -> tuple[LayerKv, ...]:
    """What each of the layers start..end keeps for a session."""
    heads, kv_heads, head_dim = attention_sizes(config)
    layers = []
    for layer in range(start_layer, end_layer + 1):
        if layer_type(config, layer) == LINEAR_ATTENTION:
            layers.append(LayerKv(layer, state_bytes=_state_bytes(config, itemsize)))
        else:
            layers.append(LayerKv(layer, kv_heads or heads, head_dim))
    return tuple(layers)


def attention_sizes(config: PreTrainedConfig) -> tuple[int, int, int]:
    """(attention heads, key-value heads, dimension of a head)."""
    heads = int(_read(config, "num_attention_heads"))
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or int(_read(config, "hidden_size")) // heads)
    return heads, kv_heads, head_dim


def _read(config: PreTrainedConfig, name: str) -> int:
    try:
        normalized = NormalizedConfigManager.get_normalized_config_class(config.model_type)(config)
        return getattr(normalized, name)
    except (KeyError, AttributeError):
        return getattr(config, name)


def _state_bytes(config: PreTrainedConfig, itemsize: int) -> int:
    """A gated delta net keeps the last columns of its convolution and one float32 matrix per value head."""
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    channels = 2 * key_dim * key_heads + value_dim * value_heads
    return channels * config.linear_conv_kernel_dim * itemsize + value_heads * key_dim * value_dim * 4
