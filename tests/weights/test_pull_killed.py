"""A pull killed with no chance to clean up leaves nothing that looks whole, and the next pull is as if it never was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_pull import tiny_gguf
from weights_testing import everything_under, write_folder

from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.staging import staged
from meshnet.weights.store import Store

ENGINE = """
import json, sys, signal, pathlib
target = pathlib.Path(sys.argv[3])
(target / "layer-00000.safetensors").write_bytes(b"half")
print(json.dumps({"step": "converting", "done_bytes": 1, "total_bytes": 2}), flush=True)
signal.pause()
"""
PULL = """
import os, pathlib, sys
from meshnet.weights.conversion import EngineProcess
from meshnet.weights.pull import Puller
from meshnet.weights.sources.hub import HuggingFaceHub
from meshnet.weights.sources.package import Pip
from meshnet.weights.store import Store

def report(name, done_bytes, total_bytes):
    print(name, flush=True)

engine = EngineProcess(os.environ, (sys.executable, sys.argv[1]))
Puller(Store(pathlib.Path(sys.argv[2])), engine, HuggingFaceHub(), Pip(os.environ), report).pull(sys.argv[3])
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_pull_leaves_nothing_that_looks_whole(store: Store, tmp_path: Path, sign: signal.Signals) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "m.gguf").write_bytes(tiny_gguf())
    words = [sys.executable, "-c", PULL, str(tmp_path / "engine.py"), str(store.root), str(tmp_path / "m.gguf")]
    # A session of its own: the engine outlives a killed parent here, and is ended with the group below.
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"converting\n"
        os.kill(child.pid, sign)
        assert child.wait(20) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert store.models() == [] and store.unreadable() == []
    if sign == signal.SIGINT:
        assert everything_under(store.root) == []
    with staged(store, "m") as target:
        split_folder(write_folder(tmp_path / "whole"), target, "m", "folder x", silent)
    store.open("m").verify()
    assert not [name for name in everything_under(store.root) if "incoming" in name]
