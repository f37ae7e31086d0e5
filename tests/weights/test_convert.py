"""GGUF conversion gives the weights, config and tokenizer that transformers itself reads from the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_testing import TOKENS, make_model, write_gguf
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from meshnet.domain.errors import WeightsError
from meshnet.engine.convert import convert_gguf, save_tokenizer
from meshnet.weights.manifest import Manifest
from meshnet.weights.progress import silent
from meshnet.weights.store import read_manifest


def convert(file: Path, target: Path) -> Manifest:
    target.mkdir()
    manifest = convert_gguf(file, target, "tiny", "file x", silent)
    assert read_manifest(target) == manifest
    return manifest


def stored(target: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in target.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_0"])
def test_weights_equal_transformers_own_reading(tmp_path: Path, model_type: str, quant: str) -> None:
    model = make_model(model_type)
    file = write_gguf(tmp_path / "m.gguf", model, quant)
    manifest = convert(file, tmp_path / "out")
    expected = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    found = stored(tmp_path / "out")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert (manifest.dtype, manifest.quantization, manifest.tied_embeddings) == ("float32", None, True)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_computes_what_the_original_did(tmp_path: Path, model_type: str, tied: bool) -> None:
    model = make_model(model_type, tied)
    manifest = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    again: Any = transformers.AutoModelForCausalLM.from_config(config)
    again.load_state_dict(stored(tmp_path / "out"), strict=not tied)
    again.tie_weights()
    ids = torch.tensor([[1, 5, 9, 2, 7]])
    with torch.inference_mode():
        assert torch.allclose(again.eval()(ids).logits, model.eval()(ids).logits, atol=1e-5)
    assert manifest.tied_embeddings == tied


def test_ids_and_template_come_from_the_metadata(tmp_path: Path) -> None:
    manifest = convert(write_gguf(tmp_path / "m.gguf", make_model("llama")), tmp_path / "out")
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    end = len(TOKENS) - 2
    assert generation == {"bos_token_id": end - 1, "eos_token_id": [end, end + 1]}
    assert manifest.has_chat_template
    assert (tmp_path / "out/chat_template.jinja").read_text() == "{{ messages[0].content }}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_tokens_to_ids("</s>") == end


def test_no_template_is_no_error(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_model("llama"), template=None)
    assert not convert(file, tmp_path / "out").has_chat_template


def test_the_revision_does_not_depend_on_where_the_file_lies(tmp_path: Path) -> None:
    model = make_model("llama")
    one = convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "one")
    (tmp_path / "weiter weg ü").mkdir()
    two = convert(write_gguf(tmp_path / "weiter weg ü/anders.gguf", model), tmp_path / "two")
    assert one.revision == two.revision
    for file in (tmp_path / "one").glob("*.json"):
        assert str(tmp_path) not in file.read_text()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"arch": "bert"}, "'bert' are not supported"),
        ({"tokens": None}, "has no tokenizer"),
        ({"skip": "blk.1.attn_q.weight"}, "lacks tensor model.layers.1.self_attn.q_proj.weight"),
        ({"extra": "rope_freqs.weight"}, r"rope_freqs\.weight"),
        ({"scaling": "yarn"}, "rope scaling 'yarn'"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_model("llama"), **changes)
    with pytest.raises(WeightsError, match=word):
        convert(file, tmp_path / "out")


def test_a_shape_other_than_the_config_says_is_refused(tmp_path: Path) -> None:
    model = make_model("llama")
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.ones(32, 96))
    with pytest.raises(WeightsError, match=r"blk\.1\.ffn_up\.weight has shape \(32, 96\)"):
        convert(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")


def test_older_tokenizer_files_become_a_tokenizer_json(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (source / "merges.txt").write_text("#version: 0.2\na b\n")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    save_tokenizer(source, tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]["ab"] == 2
    with pytest.raises(WeightsError, match="Cannot read the tokenizer"):
        (tmp_path / "empty").mkdir()
        save_tokenizer(tmp_path / "empty", tmp_path)
