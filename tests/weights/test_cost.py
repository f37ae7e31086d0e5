"""The cost of layers without torch is what the engine itself would say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from weights_testing import CONFIG, write_folder

from meshnet.domain.budget import Promise, memory_need
from meshnet.domain.errors import WeightsError
from meshnet.domain.shards import Shard
from meshnet.weights.cost import model_cost
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store


def test_files_and_config_give_bytes_by_layer(tiny: Store) -> None:
    model = tiny.open("tiny")
    cost = model_cost(model.manifest, model.config, "float32")
    sizes = {entry.name: entry.size_bytes for entry in model.manifest.files}
    assert cost.layer_bytes == tuple(sizes[f"layer-{n:05}.safetensors"] for n in range(3))
    assert cost.kv_bytes_per_token == (2 * 1 * 4 * 4,) * 3, "keys and values of 1 head of 4 float32"
    assert cost.embedding_bytes == sizes["embedding.safetensors"] and not cost.tied
    need = memory_need(cost, Shard(0, 2), Promise(64, 2))
    assert need.weights_bytes == model.shard_bytes(Shard(0, 2))
    assert need.kv_bytes == 2 * 64 * 3 * 32


def test_sixteen_bits_halve_it(tiny: Store) -> None:
    model = tiny.open("tiny")
    full, half = (model_cost(model.manifest, model.config, dtype) for dtype in ("float32", "bfloat16"))
    assert half.layer_bytes == tuple(size // 2 for size in full.layer_bytes)
    assert half.kv_bytes_per_token == tuple(size // 2 for size in full.kv_bytes_per_token)


def test_config_without_heads_is_named(tiny: Store) -> None:
    model = tiny.open("tiny")
    config = {name: value for name, value in model.config.items() if name != "num_attention_heads"}
    with pytest.raises(WeightsError, match="num_attention_heads is None"):
        model_cost(model.manifest, config, "float32")


@pytest.mark.parametrize("value", ["x", -5, float("inf"), 1 << 60, [[]], True])
@pytest.mark.parametrize("name", ["num_key_value_heads", "head_dim"])
def test_config_that_says_nonsense_is_named(tiny: Store, name: str, value: Any) -> None:
    model = tiny.open("tiny")
    with pytest.raises(WeightsError, match=name):
        model_cost(model.manifest, {**model.config, name: value}, "float32")


LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 3,
    "linear_conv_kernel_dim": 4,
}


def test_linear_attention_keeps_a_state_and_no_tokens(store: Store, tmp_path: Path) -> None:
    target = store.path("hybrid")
    target.mkdir(parents=True)
    split_folder(write_folder(tmp_path / "source", CONFIG), target, "hybrid", "test", silent)
    manifest = store.open("hybrid").manifest
    cost = model_cost(manifest, {**json.loads((target / "config.json").read_text()), **LINEAR}, "bfloat16")
    assert cost.kv_bytes_per_token == (0, 16, 0)
    channels = 2 * 4 * 2 + 6 * 3
    assert cost.state_bytes_per_session == (channels * 4 * 2 + 3 * 4 * 6 * 4, 0, channels * 4 * 2 + 3 * 4 * 6 * 4)


@pytest.mark.real
def test_real_model_costs_what_its_engine_keeps(real_store: Store) -> None:
    from meshnet.engine.capacity import kv_of_layers
    from meshnet.engine.families import text_config
    from meshnet.engine.kv import KvShape

    model = real_store.open("smollm2-135m")
    cost = model_cost(model.manifest, model.config, "float32")
    shape = KvShape(kv_of_layers(text_config(model.config), 0, 29, 4), 4)
    assert sum(cost.kv_bytes_per_token) == shape.token_bytes
    assert memory_need(cost, Shard(0, 29), Promise()).weights_bytes == model.shard_bytes(Shard(0, 29))
