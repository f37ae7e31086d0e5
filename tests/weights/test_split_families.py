"""Tiny random models of every family, saved by transformers and split: each tensor is found again, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from weights_testing import TOKENIZER, write_json

from meshnet.weights.families import FAMILIES
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXTRA = {
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "gpt_oss": EXPERTS,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR | EXPERTS,
}
TYPES = [family.model_type for family in FAMILIES]
ROOTS: dict[str, Callable[[str], str]] = {
    "as saved": lambda name: name,
    "nested": lambda name: name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name,
    "old nested": lambda name: f"language_model.{name}",
}


def make(model_type: str, n_layers: int = 4) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        model_type, **SIZES, **EXTRA.get(model_type, {}), num_hidden_layers=n_layers
    )
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def save(model_type: str) -> Path:
        if model_type not in made:
            folder = tmp_path_factory.mktemp(model_type)
            make(model_type).to(torch.bfloat16).save_pretrained(folder, max_shard_size="40KB")
            write_json(folder / "tokenizer.json", TOKENIZER)
            made[model_type] = folder
        return made[model_type]

    return save


def load_folder(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize("model_type", TYPES)
def test_split_holds_exactly_the_checkpoint(saved: Callable[[str], Path], model_type: str, tmp_path: Path) -> None:
    folder = saved(model_type)
    manifest = split_folder(folder, tmp_path, "tiny", "folder x", silent)
    source, found = load_folder(folder), load_folder(tmp_path)
    if manifest.tied_embeddings:
        source.pop("lm_head.weight", None)
    assert set(found) == set(source)
    for name, tensor in source.items():
        assert found[name].dtype == tensor.dtype and found[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name
    assert (manifest.n_layers, manifest.model_type, manifest.dtype) == (4, model_type, "bfloat16")
    for layer in range(4):
        names = set(load_file(tmp_path / f"layer-{layer:05d}.safetensors"))
        assert names == {name for name in source if re.match(rf"model\.layers\.{layer}\.", name)} and names


@pytest.mark.parametrize("model_type", TYPES)
def test_transformers_reads_the_stored_config_as_the_text_model(
    saved: Callable[[str], Path], model_type: str, tmp_path: Path
) -> None:
    manifest = split_folder(saved(model_type), tmp_path, "tiny", "folder x", silent)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(make(model_type, 1).config)
    assert (config.num_hidden_layers, config.vocab_size) == (manifest.n_layers, manifest.vocab_size)
    assert config.tie_word_embeddings == manifest.tied_embeddings


@pytest.mark.parametrize("model_type", ["gemma3_text", "qwen3_5_text", "qwen3_5_moe_text"])
@pytest.mark.parametrize("root", ["nested", "old nested"])
def test_a_model_inside_a_multimodal_one_is_the_same_model(
    saved: Callable[[str], Path], model_type: str, root: str, tmp_path: Path
) -> None:
    plain, nested, out = saved(model_type), tmp_path / "nested", tmp_path / "out"
    nested.mkdir()
    weights = {ROOTS[root](name): value.contiguous() for name, value in load_folder(plain).items()}
    weights["model.visual.blocks.0.attn.qkv.weight"] = torch.ones(4)
    weights["mtp.layers.0.self_attn.q_proj.weight"] = torch.ones(4)
    save_file(weights, nested / "model.safetensors")
    text = transformers.AutoConfig.from_pretrained(plain).to_dict()
    write_json(
        nested / "config.json",
        {"model_type": model_type.removesuffix("_text"), "text_config": text, "vision_config": {}},
    )
    write_json(nested / "tokenizer.json", TOKENIZER)
    out.mkdir()
    split_folder(nested, out, "tiny", "folder x", silent)
    (tmp_path / "ref").mkdir()
    split_folder(plain, tmp_path / "ref", "tiny", "folder x", silent)
    found, expected = load_folder(out), load_folder(tmp_path / "ref")
    assert set(found) == set(expected)
    assert all(found[name].view(torch.uint8).equal(value.view(torch.uint8)) for name, value in expected.items())


def test_a_split_model_opens_from_the_store(saved: Callable[[str], Path], tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path("tiny").mkdir()
    split_folder(saved("llama"), store.path("tiny"), "tiny", "folder x", silent)
    store.open("tiny").verify()
