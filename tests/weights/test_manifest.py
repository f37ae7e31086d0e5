from __future__ import annotations

import msgspec
import pytest

from meshnet.domain.errors import InvalidRequest, WeightsError
from meshnet.domain.shards import Shard
from meshnet.weights.manifest import FORMAT, FileEntry, Manifest, decode_manifest, encode_manifest, revision_of

ONE, TWO = "1" * 64, "2" * 64


def manifest(n_layers: int = 3, tied: bool = False, **changes: object) -> Manifest:
    files = (
        FileEntry("config.json", 1, ONE, "config"),
        FileEntry("tokenizer.json", 2, ONE, "tokenizer"),
        FileEntry("embedding.safetensors", 4, ONE, "embedding"),
        FileEntry("head.safetensors", 8, ONE, "head"),
        *(FileEntry(f"layer-{n:05d}.safetensors", 16, TWO, "layer", n) for n in range(n_layers)),
    )
    made = Manifest(
        FORMAT, "tiny", revision_of(files), "folder x", "LlamaForCausalLM", "llama", n_layers, 8, 16, 64, "float32",
        tied, files, True,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def refiled(*files: FileEntry) -> Manifest:
    kept = [f for f in manifest().files if f.name not in {new.name for new in files}]
    every = (*kept, *files)
    return manifest(files=every, revision=revision_of(every))


@pytest.mark.parametrize(
    ("tied", "shard", "names"),
    [
        (False, Shard(0, 0), {"embedding.safetensors", "layer-00000.safetensors"}),
        (False, Shard(1, 1), {"layer-00001.safetensors"}),
        (True, Shard(1, 1), {"layer-00001.safetensors"}),
        (False, Shard(2, 2), {"layer-00002.safetensors", "head.safetensors"}),
        (True, Shard(2, 2), {"layer-00002.safetensors", "head.safetensors", "embedding.safetensors"}),
        (
            False,
            Shard(0, 2),
            {f"layer-0000{n}.safetensors" for n in range(3)} | {"embedding.safetensors", "head.safetensors"},
        ),
    ],
)
def test_files_for_gives_each_shard_what_it_runs(tied: bool, shard: Shard, names: set[str]) -> None:
    found = {entry.name for entry in manifest(tied=tied).files_for(shard)}
    assert found == names | {"config.json", "tokenizer.json"}


def test_files_for_a_shard_beyond_the_last_layer_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="0-2; 1-3"):
        manifest().files_for(Shard(1, 3))


def test_revision_follows_names_and_contents_only() -> None:
    files = manifest().files
    assert revision_of(reversed(files)) == revision_of(files)
    assert revision_of(files[1:]) != revision_of(files)
    changed = (msgspec.structs.replace(files[0], sha256=TWO), *files[1:])
    assert revision_of(changed) != revision_of(files)
    renamed = (msgspec.structs.replace(files[0], name="other.json"), *files[1:])
    assert revision_of(renamed) != revision_of(files)
    assert len(revision_of(files)) == 16


def test_a_manifest_survives_the_disk() -> None:
    assert decode_manifest(encode_manifest(manifest()), "m") == manifest()


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (manifest(format=99), "format is 99"),
        (manifest(model_key="../up"), "no model name"),
        (manifest(n_layers=3, hidden_size=0), "must be positive"),
        (manifest(n_layers=3, hidden_size=1 << 40), "must be positive"),
        (msgspec.structs.replace(manifest(), n_layers=4), "3 layer files for 4 layers"),
        (msgspec.structs.replace(manifest(), n_layers=0), "n_layers is 0"),
        (manifest(revision="0" * 16), "revision"),
        (refiled(FileEntry("../../etc/passwd", 1, ONE, "config")), "no file name"),
        (refiled(FileEntry(".hidden", 1, ONE, "config")), "no file name"),
        (refiled(FileEntry("manifest.json", 1, ONE, "config")), "no file name"),
        (refiled(FileEntry("a.json", -1, ONE, "config")), "malformed"),
        (refiled(FileEntry("a.json", 1 << 60, ONE, "config")), "malformed"),
        (refiled(FileEntry("a.json", 1, "xyz", "config")), "malformed"),
        (refiled(FileEntry("a.json", 1, ONE, "config", 1)), "kind config and layer 1"),
        (refiled(FileEntry("b", 1, ONE, "layer", 1)), "4 layer files"),
        (refiled(FileEntry("b", 1, ONE, "head")), "exactly one head"),
        (refiled(FileEntry("b", 1, ONE, "config"), FileEntry("b", 1, ONE, "config")), "twice"),
    ],
)
def test_a_manifest_that_lies_is_refused_by_name(broken: Manifest, word: str) -> None:
    with pytest.raises(WeightsError, match=word) as caught:
        decode_manifest(encode_manifest(broken), "/store/tiny/manifest.json")
    assert "/store/tiny/manifest.json" in caught.value.message


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(WeightsError, match="is no manifest"):
        decode_manifest(data, "here")
