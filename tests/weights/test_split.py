from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from weights_testing import CONFIG, HIDDEN, LFS_POINTER, tensors, write_folder, write_json, write_sharded

from meshnet.domain.errors import WeightsError
from meshnet.weights.manifest import Manifest
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder


def split(folder: Path, target: Path) -> Manifest:
    target.mkdir()
    return split_folder(folder, target, "tiny", "folder x", silent)


def stored(target: Path) -> dict[str, np.ndarray]:
    return {name: value for file in target.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_every_tensor_lands_in_its_file(tmp_path: Path) -> None:
    manifest = split(write_folder(tmp_path / "in"), tmp_path / "out")
    assert_same(stored(tmp_path / "out"), tensors())
    assert set(load_file(tmp_path / "out/layer-00001.safetensors")) == {n for n in tensors() if ".layers.1." in n}
    assert set(load_file(tmp_path / "out/head.safetensors")) == {"model.norm.weight", "lm_head.weight"}
    assert set(load_file(tmp_path / "out/embedding.safetensors")) == {"model.embed_tokens.weight"}
    assert (manifest.n_layers, manifest.hidden_size, manifest.dtype) == (3, HIDDEN, "float32")
    assert not manifest.tied_embeddings and manifest.has_chat_template


def test_one_file_or_many_or_another_root_give_the_same_revision(tmp_path: Path) -> None:
    one = split(write_folder(tmp_path / "a"), tmp_path / "out-a")
    many = split(write_sharded(tmp_path / "b", tensors()), tmp_path / "out-b")
    renamed = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors().items()}
    renamed["vision_tower.patch.weight"] = np.ones(3, np.float32)
    other = split(write_folder(tmp_path / "c", weights=renamed), tmp_path / "out-c")
    changed = split(write_folder(tmp_path / "d", weights=tensors(seed=2)), tmp_path / "out-d")
    assert one.revision == many.revision == other.revision != changed.revision


def test_generation_config_and_tokenizer_come_along(tmp_path: Path) -> None:
    split(write_folder(tmp_path / "in"), tmp_path / "out")
    assert json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert (tmp_path / "out/tokenizer.json").is_file()
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text()) == {"eos_token": "</s>"}
    assert (tmp_path / "out/chat_template.jinja").read_text() == "{{ messages[0].content }}"


def test_a_template_file_wins_over_the_one_in_the_tokenizer_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / "chat_template.jinja").write_text("file")
    split(folder, tmp_path / "out")
    assert (tmp_path / "out/chat_template.jinja").read_text() == "file"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tools", "template": "t"}], "t"),
        ([], None),
        (5, None),
    ],
)
def test_named_templates_give_their_default(tmp_path: Path, value: Any, expected: str | None) -> None:
    folder = write_folder(tmp_path / "in")
    write_json(folder / "tokenizer_config.json", {"chat_template": value})
    manifest = split(folder, tmp_path / "out")
    assert manifest.has_chat_template == (expected is not None)
    file = tmp_path / "out/chat_template.jinja"
    assert (file.read_text() if file.is_file() else None) == expected


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    assert not split(write_folder(tmp_path / "in", template=None), tmp_path / "out").has_chat_template


@pytest.mark.parametrize("lm_head", ["absent", "equal", "different"])
def test_tied_embeddings(tmp_path: Path, lm_head: str) -> None:
    weights = tensors()
    if lm_head == "absent":
        del weights["lm_head.weight"]
    if lm_head == "equal":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    folder = write_folder(tmp_path / "in", {**CONFIG, "tie_word_embeddings": True}, weights)
    manifest = split(folder, tmp_path / "out")
    is_tied = lm_head != "different"
    assert manifest.tied_embeddings == is_tied
    assert ("lm_head.weight" in stored(tmp_path / "out")) == (not is_tied)
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] == is_tied


def test_an_untied_model_without_lm_head_is_refused(tmp_path: Path) -> None:
    weights = tensors()
    del weights["lm_head.weight"]
    with pytest.raises(WeightsError, match=r"no lm_head\.weight"):
        split(write_folder(tmp_path / "in", weights=weights), tmp_path / "out")


@pytest.mark.parametrize(
    ("gone", "word"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("layers.1.", "layers 1 of the 3"),
    ],
)
def test_a_checkpoint_with_a_part_missing_is_refused(tmp_path: Path, gone: str, word: str) -> None:
    weights = {name: value for name, value in tensors().items() if gone not in name}
    with pytest.raises(WeightsError, match=word):
        split(write_folder(tmp_path / "in", weights=weights), tmp_path / "out")


def test_an_embedding_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"\(16, 8\).*hidden_size 9"):
        split(write_folder(tmp_path / "in", {**CONFIG, "hidden_size": 9}), tmp_path / "out")


def test_an_index_naming_a_missing_file_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "in", tensors())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"names model-00002-of-00002\.safetensors, which is missing"):
        split(folder, tmp_path / "out")


def test_an_index_listing_a_tensor_no_file_holds_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "in", tensors())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.2.extra"] = "model-00001-of-00002.safetensors"
    write_json(folder / "model.safetensors.index.json", index)
    with pytest.raises(WeightsError, match=r"model\.layers\.2\.extra"):
        split(folder, tmp_path / "out")


@pytest.mark.parametrize("weight_map", [None, {}, {"a": 1}, {"a": "../up.safetensors"}, {"a": "pickle.bin"}])
def test_an_index_that_is_none_is_refused(tmp_path: Path, weight_map: Any) -> None:
    folder = write_sharded(tmp_path / "in", tensors())
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(WeightsError, match=r"index\.json"):
        split(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("config.json", r"no config\.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "holds no weights"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, file: str, word: str) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / file).unlink()
    with pytest.raises(WeightsError, match=word):
        split(folder, tmp_path / "out")


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="pickled"):
        split(folder, tmp_path / "out")


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="2 safetensors files"):
        split(folder, tmp_path / "out")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_git_lfs_pointer_in_any_place_is_named(tmp_path: Path, file: str) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / file).write_bytes(LFS_POINTER)
    with pytest.raises(WeightsError, match=f"{file} is a Git LFS pointer"):
        split(folder, tmp_path / "out")


@pytest.mark.parametrize("text", ["{}", '{"model": null}', "[]", "{"])
def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_folder(tmp_path / "in")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(WeightsError, match=r"tokenizer\.json"):
        split(folder, tmp_path / "out")


def test_memory_stays_bounded_whatever_the_size(tmp_path: Path) -> None:
    weights = tensors()
    weights["model.layers.1.mlp.up_proj.weight"] = np.zeros((4096, 4096), np.float32)
    folder = write_folder(tmp_path / "in", weights=weights)
    del weights
    tracemalloc.start()
    try:
        split(folder, tmp_path / "out")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The one tensor has 64 MiB; a copy buffer has one.
    assert peak_bytes < 8 << 20
