"""The ring's benchmark, small: the whole of it is ``meshnet bench ring``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshnet.weights.store import Store
from tests.tui.debian import need_namespaces

ONE_WAY_MS = 20.0


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_token_takes_a_trip_a_hop_and_no_way_back(tmp_path: Path, real_store: Store) -> None:
    need_namespaces()
    (tmp_path / "models").symlink_to(real_store.root)
    command = [sys.executable, "-m", "meshnet.bench", "ring", "--json", "--rounds", "2", "--tokens", "16"]
    environ = {**os.environ, "MESHNET_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (ring,) = json.loads(done.stdout)["rings"]
    assert (ring["hops"], ring["one_way_ms"]) == (3, ONE_WAY_MS)
    assert ring["trips_ms"]["low"] >= 3 * ONE_WAY_MS, "the lines do delay"
    # The best round, so that a busy machine does not decide: nested calls cannot be faster than this.
    assert ring["trips_ms"]["low"] < 4 * ONE_WAY_MS
    assert ring["computing_ms"]["low"] > 0
    assert 0 < ring["of_limit"]["median"] <= 1
