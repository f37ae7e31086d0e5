"""Tiny GGUF files, written with gguf's own writer from models of transformers, rows permuted as llama.cpp does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

TOKENS = [*"ĀabcdefghijklmnopqrstuvwxyzĠ", "ab", "<s>", "</s>", "<|eot|>"]
QUANTS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
}


def make_model(model_type: str, tied: bool = True, n_layers: int = 3) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        model_type,
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=n_layers,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=len(TOKENS),
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        rms_norm_eps=1e-5,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def write_gguf(
    file: Path, model: Any, quant: str = "F32", template: str | None = "{{ messages[0].content }}", **changes: Any
) -> Path:
    """``changes``: ``arch``, ``tokens`` (None: no tokenizer), ``skip`` (a GGUF tensor name), ``extra`` (a tensor more),
    ``scaling`` (a rope scaling type)."""
    config = model.config
    writer = gguf.GGUFWriter(file, changes.get("arch", config.model_type))
    _add_metadata(writer, config, template, changes)
    name_map = gguf.get_tensor_name_map(_arch(config.model_type), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        gguf_name = f"{name_map.get_name(stem)}.{suffix}"
        if gguf_name == changes.get("skip") or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        data = tensor.numpy()
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            data = data.reshape(heads, 2, -1, data.shape[-1]).swapaxes(1, 2).reshape(data.shape)
        _add_tensor(writer, gguf_name, np.ascontiguousarray(data), quant)
    if "extra" in changes:
        _add_tensor(writer, changes["extra"], np.ones((32, 32), np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_metadata(writer: gguf.GGUFWriter, config: Any, template: str | None, changes: dict[str, Any]) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(32)
    writer.add_rope_dimension_count(32)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if "scaling" in changes:
        writer.add_string(f"{config.model_type}.rope.scaling.type", changes["scaling"])
    tokens = changes.get("tokens", TOKENS)
    if tokens is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(len(tokens) - 3)
        writer.add_eos_token_id(len(tokens) - 2)
        writer.add_eot_token_id(len(tokens) - 1)
    if template is not None:
        writer.add_chat_template(template)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, quant: str) -> None:
    if quant == "F32" or data.ndim == 1:
        writer.add_tensor(name, data.astype(np.float32))
    else:
        kind = QUANTS[quant]
        writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)


def _arch(model_type: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == model_type)
