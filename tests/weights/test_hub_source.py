"""The real huggingface_hub against a hub on loopback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hub_testing import HubServer, serving
from weights_testing import everything_under, tensors, write_folder

from meshnet.domain.errors import NotFound, WeightsError
from meshnet.weights.sources.hub import HubSource, HuggingFaceHub


@pytest.fixture
def server(tmp_path: Path):
    folder = write_folder(tmp_path / "repository")
    (folder / "README.md").write_text("x" * 1000)
    with serving(folder) as server:
        yield server


def test_a_repository_comes_down_with_progress(server: HubServer, tmp_path: Path) -> None:
    source = HubSource("owner/tiny", HuggingFaceHub(server.url))
    seen: list[tuple[str, int, int | None]] = []
    (tmp_path / "downloads").mkdir()
    folder = source.fetch(tmp_path / "downloads", lambda *line: seen.append(line))
    weights = (server.folder / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == weights
    assert (folder / "tokenizer.json").is_file() and not (folder / "README.md").exists()
    assert seen[-1] == ("downloading", len(weights), len(weights))
    assert source.download_bytes() == sum(f.stat().st_size for f in server.folder.iterdir() if f.name != "README.md")


def test_a_download_whose_line_breaks_goes_on_where_it_stopped(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    # huggingface_hub writes pieces of 10 MB: less than one is fetched again from its start.
    large = {**tensors(), "model.layers.0.mlp.up_proj.weight": np.ones((1024, 3072), np.float32)}
    write_folder(server.folder, weights=large)
    source = HubSource("owner/tiny", HuggingFaceHub(server.url))
    server.break_after = 11_000_000
    try:
        source.fetch(tmp_path / "downloads", lambda *line: None)
    except WeightsError as error:
        assert error.code == "download"
        source.fetch(tmp_path / "downloads", lambda *line: None)
    assert server.break_after is None and server.ranges[-1].startswith("bytes=1")
    expected = (server.folder / "model.safetensors").read_bytes()
    assert (tmp_path / "downloads/model.safetensors").read_bytes() == expected


def test_an_unknown_repository_is_named(server: HubServer, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="owner/other"):
        HubSource("owner/other", HuggingFaceHub(server.url)).fetch(tmp_path, lambda *line: None)
    assert "downloads" not in everything_under(tmp_path)


def test_a_hub_that_cannot_be_reached_is_an_error_worth_a_retry(tmp_path: Path) -> None:
    with serving(tmp_path) as gone:
        url = gone.url
    with pytest.raises(WeightsError, match="Downloading owner/tiny failed") as caught:
        HubSource("owner/tiny", HuggingFaceHub(url)).fetch(tmp_path, lambda *line: None)
    assert caught.value.code == "download"
