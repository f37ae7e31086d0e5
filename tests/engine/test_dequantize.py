from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from engine_testing import store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.errors import WeightsError
from meshnet.domain.shards import Shard
from meshnet.engine.dequantize import dequantize, require_known
from meshnet.engine.shard import load_shard
from meshnet.weights.store import Store

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _by_hand(byte: int, half: int, exponent: int) -> float:
    code = (byte >> 4) if half else byte & 15
    return math.copysign(E2M1[code & 7], -1 if code & 8 else 1) * 2.0 ** (exponent - 127)


def test_mxfp4_gives_each_value_its_groups_power_of_two() -> None:
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (2, 3, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(115, 130, (2, 3, 2), dtype=torch.uint8, generator=generator)
    bias = torch.ones(2, 3)
    found = dequantize(
        {"x.gate_up_proj_blocks": blocks, "x.gate_up_proj_scales": scales, "x.gate_up_proj_bias": bias},
        {"quant_method": "mxfp4"},
        torch.float32,
    )
    assert set(found) == {"x.gate_up_proj", "x.gate_up_proj_bias"}
    matrix = found["x.gate_up_proj"]
    assert matrix.shape == (2, 64, 3)
    for expert, row, column in [(0, 0, 0), (0, 2, 1), (1, 1, 33), (1, 2, 63), (0, 1, 30)]:
        group, place = divmod(column, 32)
        byte = int(blocks[expert, row, group, place // 2])
        expected = _by_hand(byte, place % 2, int(scales[expert, row, group]))
        assert float(matrix[expert, column, row]) == expected


def test_fp8_blocks_take_their_scale_at_ragged_edges_too() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 10.0], [0.5, 2.0]])
    found = dequantize(
        {"a.weight": weight, "a.weight_scale_inv": scale, "a.input_scale": torch.ones(1), "norm.weight": torch.ones(3)},
        {"quant_method": "fp8", "weight_block_size": [2, 2]},
        torch.float32,
    )
    assert set(found) == {"a.weight", "norm.weight"}
    assert found["a.weight"].tolist() == [[1.0, 2.0, 30.0], [4.0, 5.0, 60.0], [3.5, 4.0, 18.0]]


def test_a_missing_scale_is_named() -> None:
    with pytest.raises(WeightsError, match="x_scales"):
        dequantize({"x_blocks": torch.zeros(1, 1, 1, 16, dtype=torch.uint8)}, {"quant_method": "mxfp4"}, torch.float32)


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "compressed-tensors"])
def test_other_quantizations_are_refused_by_name_before_reading(tmp_path: Path, method: str) -> None:
    with pytest.raises(WeightsError, match=method):
        require_known({"quant_method": method})


def test_an_fp8_model_loads_like_the_plain_one(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300,
    )  # fmt: skip
    store = store_model(LlamaForCausalLM(config), tmp_path, "tiny")
    plain = load_shard(store.open("tiny"), Shard(1, 1))
    model_config = store.path("tiny") / "config.json"
    raw = json.loads(model_config.read_text())
    quantization = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    model_config.write_text(json.dumps({**raw, "quantization_config": quantization}))
    _quantize(store, "layer-00001.safetensors")
    found = load_shard(Store(store.root).open("tiny"), Shard(1, 1))
    for (name, a), (_, b) in zip(plain.layers[0].named_parameters(), found.layers[0].named_parameters(), strict=True):
        assert float((a - b).detach().abs().max()) <= 0.05 * float(a.detach().abs().max()), name


def _quantize(store: Store, file: str) -> None:
    from safetensors.torch import load_file, save_file

    path = store.path("tiny") / file
    tensors = load_file(path)
    for name, weight in list(tensors.items()):
        if weight.dim() == 2:
            scale = torch.full((-(-weight.shape[0] // 16), -(-weight.shape[1] // 16)), float(weight.abs().max()) / 448)
            tensors[name] = (weight / scale[0, 0]).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, path)
