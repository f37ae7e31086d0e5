from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from weights_testing import CONFIG, LFS_POINTER

from meshnet.domain.errors import WeightsError
from meshnet.weights.families import FAMILIES
from meshnet.weights.shape import read_json, shape_of

NO_LAYERS = {key: value for key, value in CONFIG.items() if key != "num_hidden_layers"}


def test_a_plain_config_is_read() -> None:
    shape = shape_of(CONFIG, "c")
    assert (shape.n_layers, shape.hidden_size, shape.vocab_size, shape.context_length) == (3, 8, 16, 64)
    assert shape.family.architecture == "LlamaForCausalLM" and shape.quantization is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, "is 0"),
        (-1, "is -1"),
        ("30", "is '30'"),
        (None, "is missing"),
        (True, "is True"),
        (10**6, "is 1000000"),
        (2.0, "is 2.0"),
    ],
)
def test_a_layer_count_that_is_none_is_named(value: Any, found: str) -> None:
    with pytest.raises(WeightsError, match=f"folder/config.json: num_hidden_layers {found}"):
        shape_of({**CONFIG, "num_hidden_layers": value}, "folder/config.json")


def test_an_absent_layer_count_is_named() -> None:
    with pytest.raises(WeightsError, match="num_hidden_layers is missing"):
        shape_of(NO_LAYERS, "c")


@pytest.mark.parametrize("key", ["layer_types", "layers_block_type"])
def test_the_count_may_stand_only_as_a_list_of_kinds(key: str) -> None:
    shape = shape_of({**NO_LAYERS, key: ["full_attention"] * 5}, "c")
    assert shape.n_layers == shape.config["num_hidden_layers"] == 5


def test_a_list_of_kinds_of_another_length_is_refused() -> None:
    with pytest.raises(WeightsError, match="layer_types lists 2"):
        shape_of({**CONFIG, "layer_types": ["full_attention"] * 2}, "c")


@pytest.mark.parametrize(
    ("outer", "text"), [("gemma3", "gemma3_text"), ("qwen3_5", "qwen3_5_text"), ("qwen3_5_moe", "qwen3_5_moe_text")]
)
def test_text_config_is_unwrapped(outer: str, text: str) -> None:
    nested = {**CONFIG, "model_type": text, "num_hidden_layers": 4}
    del nested["tie_word_embeddings"]
    config = {"model_type": outer, "text_config": nested, "eos_token_id": [1, 106], "tie_word_embeddings": True}
    shape = shape_of(config, "c")
    assert shape.n_layers == 4 and shape.ties_embeddings
    assert shape.config["model_type"] == text and shape.config["eos_token_id"] == [1, 106]
    assert "text_config" not in shape.config


def test_an_unsupported_type_names_the_supported_ones() -> None:
    with pytest.raises(WeightsError, match=r"'mamba'.*llama.*gpt_oss"):
        shape_of({**CONFIG, "model_type": "mamba"}, "c")
    with pytest.raises(WeightsError, match="model_type"):
        shape_of({}, "c")


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -5, "8", 1 << 40])
def test_sizes_that_cannot_be_are_named(key: str, value: Any) -> None:
    with pytest.raises(WeightsError, match=key):
        shape_of({**CONFIG, key: value}, "c")


def test_tying_follows_the_family_when_unsaid() -> None:
    unsaid = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"}
    assert not shape_of(unsaid, "c").ties_embeddings
    assert shape_of({**unsaid, "model_type": "gemma3_text"}, "c").ties_embeddings


def test_the_defaults_of_tying_are_those_of_transformers() -> None:
    import transformers

    for family in FAMILIES:
        config = transformers.AutoConfig.for_model(family.model_type)
        assert config.tie_word_embeddings == family.is_tied_by_default, family.model_type
        assert hasattr(transformers, family.architecture)


def test_quantization_is_named() -> None:
    assert shape_of({**CONFIG, "quantization_config": {"quant_method": "mxfp4"}}, "c").quantization == "mxfp4"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"[1]", "not a JSON object"),
        (LFS_POINTER, "Git LFS pointer"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_a_bad_json_file_is_named(tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(WeightsError, match=f"config.json.*{word}"):
        read_json(tmp_path / "config.json")
