from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from engine_testing import store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.errors import InvalidRequest, WeightsError
from meshnet.domain.shards import Shard
from meshnet.engine.loading import read_file
from meshnet.engine.shard import load_shard
from meshnet.weights.store import Store

LAYERS = 5


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, tie_word_embeddings=request.param,
    )  # fmt: skip
    return store_model(LlamaForCausalLM(config), tmp_path_factory.mktemp("loading"), "tiny")


class Meter:
    """Opens files and counts what is read of each."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}

    def open(self, path: Path) -> BinaryIO:
        stream = path.open("rb", buffering=0)
        self.read[path.name] = 0
        meter = self

        class Counted:
            def __enter__(self) -> Counted:
                return self

            def __exit__(self, *_: object) -> None:
                stream.close()

            def seek(self, offset: int) -> int:
                return stream.seek(offset)

            def readinto(self, target: memoryview) -> int:
                count = stream.readinto(target)
                meter.read[path.name] += count
                return count

        return Counted()  # type: ignore[return-value]


@pytest.mark.parametrize("shard", [Shard(1, 3), Shard(0, 1), Shard(3, 4), Shard(2, 2), Shard(0, 4)], ids=str)
def test_a_shard_reads_its_own_files_once_and_nothing_else(store: Store, shard: Shard) -> None:
    model, meter = store.open("tiny"), Meter()
    load_shard(model, shard, opener=meter.open)
    files = [f for f in model.manifest.files_for(shard) if f.kind in ("layer", "embedding", "head")]
    assert sorted(meter.read) == sorted(file.name for file in files)
    for file in files:
        expected = sum(tensor.numel() * tensor.element_size() for tensor in read_file(model.path / file.name).values())
        assert meter.read[file.name] == expected


def test_a_node_needs_only_the_files_of_its_shard(store: Store, tmp_path: Path) -> None:
    import shutil

    model = store.open("tiny")
    target = tmp_path / "tiny"
    target.mkdir()
    for name in ("manifest.json", *(entry.name for entry in model.manifest.files_for(Shard(1, 2)))):
        shutil.copy(model.path / name, target / name)
    partial = Store(tmp_path).open("tiny")
    load_shard(partial, Shard(1, 2))
    with pytest.raises(WeightsError, match=r"layer-00003\.safetensors"):
        load_shard(partial, Shard(2, 3))


def test_a_middle_shard_holds_neither_embedding_nor_head(store: Store) -> None:
    loaded = load_shard(store.open("tiny"), Shard(1, 3))
    assert loaded.embedding is None and loaded.head is None
    assert len(loaded.layers) == 3
    with pytest.raises(InvalidRequest):
        loaded.embed([1])


def test_a_tied_model_holds_its_matrix_once(store: Store) -> None:
    loaded = load_shard(store.open("tiny"), Shard(0, LAYERS - 1))
    assert loaded.embedding is not None and loaded.head is not None
    same = loaded.embedding.module.weight is loaded.head.lm_head.weight
    assert same == loaded.config.tie_word_embeddings


def test_layers_beyond_the_model_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="0-4"):
        load_shard(store.open("tiny"), Shard(0, LAYERS))


def _copy(store: Store, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(store.path("tiny"), tmp_path / "tiny"))


def test_a_file_cut_short_is_named(store: Store, tmp_path: Path) -> None:
    folder = _copy(store, tmp_path)
    file = folder / "layer-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(WeightsError, match=r"layer-00002\.safetensors"):
        load_shard(Store(tmp_path).open("tiny"), Shard(1, 3))


def test_a_layer_file_of_another_layer_is_named(store: Store, tmp_path: Path) -> None:
    folder = _copy(store, tmp_path)
    (folder / "layer-00002.safetensors").write_bytes((folder / "layer-00001.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="layer 2 lack"):
        load_shard(Store(tmp_path).open("tiny"), Shard(1, 3))


@pytest.mark.parametrize("model_type", ["gpt2", "bert", None])
def test_other_families_are_refused_by_name(store: Store, tmp_path: Path, model_type: str | None) -> None:
    folder = _copy(store, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    with pytest.raises(WeightsError, match="llama"):
        load_shard(Store(tmp_path).open("tiny"), Shard(1, 3))


RESIDENT = """
import sys
from pathlib import Path
import torch, transformers, meshnet.engine.load
torch.set_num_threads(1)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
torch.ones(64, 64) @ torch.ones(64, 64)
idle = resident()
from meshnet.domain.shards import Shard
from meshnet.weights.store import Store
store = Store(Path(sys.argv[1]))
engine, _ = meshnet.engine.load.load_engine(store, sys.argv[2], Shard(10, 19), kv_budget_bytes=64 << 20)
engine.measure()
print(idle, resident())
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_resident_memory_of_a_middle_shard_is_its_weights_and_little_more(real_store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(real_store.root), "smollm2-135m"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    idle, loaded = map(int, done.stdout.split())
    weights = real_store.open("smollm2-135m").shard_bytes(Shard(10, 19))
    assert loaded < idle + 1.4 * weights + (64 << 20), f"{(loaded - idle) / weights:.2f} x the weights"
    assert torch.get_num_threads() == 1
