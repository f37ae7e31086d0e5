"""The node as a process: what it refuses at start, one line each."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "weights"))
from weights_testing import write_folder


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


class Doorkeeper(BaseHTTPRequestHandler):
    """A tracker that asks everybody for a key."""

    def do_POST(self) -> None:
        body = b'{"error": {"message": "This needs an API key.", "type": "x", "code": "unauthorized", "param": null}}'
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def doorkeeper() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Doorkeeper) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("words", [(), ("--model", "tiny", "--shard", "0-2")])
def test_node_that_the_tracker_refuses_ends_before_it_loads(
    tmp_path: Path, doorkeeper: str, words: tuple[str, ...]
) -> None:
    target = tmp_path / "models" / "tiny"
    target.mkdir(parents=True)
    split_folder(write_folder(tmp_path / "source"), target, "tiny", "folder", silent)
    done = start(tmp_path, *words, "--tracker", doorkeeper)
    assert done.returncode == 1
    assert "set MESHNET_JOIN_TOKEN to a key of scope join" in done.stderr.splitlines()[-1]
    assert "shard loaded" not in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("run/*"))
