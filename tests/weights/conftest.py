from __future__ import annotations

from pathlib import Path

import pytest
from weights_testing import write_folder

from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def tiny(store: Store, tmp_path: Path) -> Store:
    """A store that holds the model ``tiny``."""
    target = store.path("tiny")
    target.mkdir(parents=True)
    split_folder(write_folder(tmp_path / "source"), target, "tiny", "folder source", silent)
    return store
