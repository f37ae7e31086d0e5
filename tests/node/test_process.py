"""The node as a process: what it refuses at start, one line each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def start(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MESHNET_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "daemons.node", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "nobody", "--shard", "0-14", "--tracker", "http://127.0.0.1:9"), "No model 'nobody'"),
        (("--shard", "0-14"), "--model"),
        (("--model", "nobody", "--tracker", "http://127.0.0.1:9"), "--tracker"),
        (("--model", "nobody", "--shard", "0-14", "--host", "0.0.0.0"), "--profile lan"),
        (("--model", "nobody", "--shard", "0-14", "--config", "/nowhere.toml"), "/nowhere.toml"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_no_run_file(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = start(tmp_path, *words)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("run/*"))
