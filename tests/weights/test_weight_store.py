from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshnet.domain.errors import NotFound, WeightsError
from meshnet.domain.shards import Shard
from meshnet.weights.places import state_root, store_root
from meshnet.weights.store import Store


def test_models_are_listed_and_opened(tiny: Store) -> None:
    assert [m.model_key for m in tiny.models()] == ["tiny"]
    model = tiny.open("tiny")
    assert model.config["num_hidden_layers"] == model.manifest.n_layers == 3
    assert model.layer_file(1).is_file() and model.embedding_file().is_file() and model.head_file().is_file()
    model.verify()


def test_an_empty_store_has_no_models(store: Store) -> None:
    assert store.models() == []


@pytest.mark.parametrize("name", ["other", "../tiny", "", "Tiny"])
def test_open_of_an_unknown_name_says_what_exists(tiny: Store, name: str) -> None:
    with pytest.raises(NotFound, match="Stored: tiny"):
        tiny.open(name)


def test_verify_names_the_file_with_expected_and_found_size(tiny: Store) -> None:
    file = tiny.open("tiny").layer_file(1)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(WeightsError, match=rf"layer-00001.*expected {size} bytes, found {size - 3}"):
        tiny.open("tiny").verify()


def test_verify_finds_one_flipped_bit_by_its_hash(tiny: Store) -> None:
    file = tiny.open("tiny").head_file()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=r"head\.safetensors.*expected SHA-256 [0-9a-f]{64}, found [0-9a-f]{64}"):
        tiny.open("tiny").verify()


def test_a_partial_model_answers_for_the_shard_it_holds(tiny: Store) -> None:
    model = tiny.open("tiny")
    model.layer_file(0).unlink()
    model.embedding_file().unlink()
    model = tiny.open("tiny")
    model.verify(Shard(1, 2))
    assert model.missing(Shard(1, 2)) == ()
    assert {entry.name for entry in model.missing(Shard(0, 2))} == {"layer-00000.safetensors", "embedding.safetensors"}
    with pytest.raises(WeightsError, match="is missing"):
        model.verify(Shard(0, 1))


def test_shard_bytes_counts_weights_the_shard_reads(tiny: Store) -> None:
    model = tiny.open("tiny")
    layer = model.layer_file(1).stat().st_size
    assert model.shard_bytes(Shard(1, 1)) == layer
    assert model.shard_bytes(Shard(0, 1)) == 2 * layer + model.embedding_file().stat().st_size
    assert model.shard_bytes(Shard(2, 2)) == layer + model.head_file().stat().st_size


def test_remove_deletes_the_model_and_says_what_it_freed(tiny: Store) -> None:
    size = sum(f.stat().st_size for f in tiny.path("tiny").iterdir())
    assert tiny.remove("tiny") == size
    assert tiny.models() == [] and not tiny.path("tiny").exists()
    with pytest.raises(NotFound):
        tiny.remove("tiny")


def test_remove_never_leaves_the_store(tiny: Store, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(NotFound):
        tiny.remove("../precious")
    assert (tmp_path / "precious").is_dir()


def test_a_damaged_manifest_is_reported_and_not_listed(tiny: Store) -> None:
    (tiny.path("tiny") / "manifest.json").write_text("{")
    assert tiny.models() == []
    assert len(tiny.unreadable()) == 1
    with pytest.raises(WeightsError, match="is no manifest"):
        tiny.open("tiny")
    tiny.remove("tiny")


def test_a_model_under_another_name_is_refused(tiny: Store) -> None:
    tiny.path("tiny").rename(tiny.path("other"))
    with pytest.raises(WeightsError, match="'tiny'"):
        tiny.open("other")


def test_a_damaged_config_is_refused(tiny: Store) -> None:
    (tiny.path("tiny") / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json is not JSON"):
        tiny.open("tiny")


def test_meshnet_home_roots_everything(tmp_path: Path) -> None:
    environ = {"MESHNET_HOME": str(tmp_path)}
    assert state_root(environ) == tmp_path
    assert store_root(environ) == tmp_path / "models"
    assert store_root({"MESHNET_HOME": " "}) == store_root({})
    assert store_root({}).is_absolute()


def test_the_manifest_on_disk_is_plain_json_without_paths(tiny: Store, tmp_path: Path) -> None:
    text = (tiny.path("tiny") / "manifest.json").read_text()
    assert json.loads(text)["model_key"] == "tiny"
    assert str(tmp_path) not in text
