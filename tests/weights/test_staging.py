from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

import pytest
from weights_testing import everything_under, write_folder

from meshnet.domain.errors import Conflict, NotFound, WeightsError
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.staging import SPARE_BYTES, downloads_folder, pull_lock, remove_model, require_space, staged
from meshnet.weights.store import Store


def test_a_second_pull_of_the_same_model_is_refused(store: Store) -> None:
    with pull_lock(store, "tiny"):
        with pytest.raises(Conflict, match="Another pull of tiny"), pull_lock(store, "tiny"):
            pass
        with pull_lock(store, "other"):
            pass
    with pull_lock(store, "tiny"):
        pass
    assert everything_under(store.root) == []


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(store: Store) -> None:
    store.root.mkdir()
    old = os.open(store.root / ".tiny.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(old, fcntl.LOCK_EX)
        (store.root / ".tiny.lock").unlink()
        with pull_lock(store, "tiny"), pytest.raises(Conflict), pull_lock(store, "tiny"):
            pass
    finally:
        os.close(old)


def test_a_block_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), pull_lock(store, "tiny"), staged(store, "tiny") as folder:
        (folder / "layer-00000.safetensors").write_bytes(b"x")
        raise ZeroDivisionError
    assert everything_under(store.root) == []


def test_a_folder_without_manifest_never_takes_the_place(store: Store) -> None:
    store.root.mkdir()
    with pytest.raises(WeightsError, match="without a manifest"), staged(store, "tiny") as folder:
        (folder / "config.json").write_text("{}")
    assert everything_under(store.root) == []


def test_the_old_model_stands_until_the_new_one_is_whole(tiny: Store, tmp_path: Path) -> None:
    before = tiny.open("tiny").manifest.revision
    with pytest.raises(ZeroDivisionError), staged(tiny, "tiny"):
        raise ZeroDivisionError
    assert tiny.open("tiny").manifest.revision == before
    from weights_testing import tensors

    other = write_folder(tmp_path / "other", weights=tensors(seed=5))
    with staged(tiny, "tiny") as folder:
        split_folder(other, folder, "tiny", "folder other", silent)
        assert tiny.open("tiny").manifest.revision == before
    assert tiny.open("tiny").manifest.revision != before
    tiny.open("tiny").verify()
    assert [path.name for path in tiny.root.iterdir()] == ["tiny"]


def test_leftovers_of_this_model_are_removed_and_no_others(store: Store) -> None:
    for name in (".incoming-a-12345678", ".outgoing-a-12345678", ".incoming-a-b-12345678"):
        (store.root / name).mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), staged(store, "a"):
        raise ZeroDivisionError
    assert everything_under(store.root) == [".incoming-a-b-12345678"]


def test_a_small_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    require_space(tmp_path, 1000, "tiny", lambda folder: 1000 + SPARE_BYTES)
    with pytest.raises(WeightsError, match=f"{1001 + SPARE_BYTES} bytes needed, {1000 + SPARE_BYTES} free") as caught:
        require_space(tmp_path, 1001, "tiny", lambda folder: 1000 + SPARE_BYTES)
    assert caught.value.code == "disk_full"


def test_a_pull_may_wait_for_another_to_end(store: Store) -> None:
    with contextlib.ExitStack() as first:
        first.enter_context(pull_lock(store, "tiny"))
        held = threading.Event()

        def wait() -> None:
            with pull_lock(store, "tiny", wait_s=30.0):
                held.set()

        second = threading.Thread(target=wait, name="second pull")
        second.start()
        assert not held.is_set()
        first.close()
        second.join(30.0)
        assert held.is_set()


def test_remove_takes_leftovers_along(tiny: Store) -> None:
    downloads = downloads_folder(tiny, "tiny")
    downloads.mkdir()
    (downloads / "half.whl").write_bytes(b"12345")
    size = sum(f.stat().st_size for f in tiny.path("tiny").iterdir())
    assert remove_model(tiny, "tiny") == size + 5
    assert everything_under(tiny.root) == []


def test_leftovers_without_a_model_can_be_removed_too(store: Store) -> None:
    downloads_folder(store, "tiny").mkdir(parents=True)
    (downloads_folder(store, "tiny") / "half.whl").write_bytes(b"12345")
    assert remove_model(store, "tiny") == 5
    for name in ("tiny", "../tiny"):
        with pytest.raises(NotFound):
            remove_model(store, name)
    assert everything_under(store.root) == []


def test_a_model_being_pulled_is_not_removed(tiny: Store) -> None:
    with pull_lock(tiny, "tiny"), pytest.raises(Conflict):
        remove_model(tiny, "tiny")
    assert tiny.models()
