"""Tiny models as files, made without torch: four kinds of tensors, a few kilobytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, VOCAB, LAYERS = 8, 16, 3
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}


def tensors(seed: int = 1, prefix: str = "model.", n_layers: int = LAYERS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    made = {
        f"{prefix}embed_tokens.weight": matrix(VOCAB, HIDDEN),
        f"{prefix}norm.weight": matrix(HIDDEN),
        "lm_head.weight": matrix(VOCAB, HIDDEN),
    }
    for layer in range(n_layers):
        made[f"{prefix}layers.{layer}.self_attn.q_proj.weight"] = matrix(HIDDEN, HIDDEN)
        made[f"{prefix}layers.{layer}.input_layernorm.weight"] = matrix(HIDDEN)
    return made


def write_folder(
    folder: Path,
    config: Mapping[str, Any] = CONFIG,
    weights: Mapping[str, np.ndarray] | None = None,
    template: str | None = "{{ messages[0].content }}",
) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    write_json(folder / "tokenizer.json", TOKENIZER)
    tokenizer_config = {"eos_token": "</s>"} | ({"chat_template": template} if template is not None else {})
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    save_file(dict(weights if weights is not None else tensors()), folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, weights: Mapping[str, np.ndarray]) -> Path:
    """The same with two safetensors files and an index."""
    write_folder(folder, weights=weights)
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file)
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}},
    )
    return folder


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value))


LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53\nsize 98362432\n"
)


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
