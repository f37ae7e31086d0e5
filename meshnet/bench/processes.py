"""Daemons of a benchmark: started as real processes in a home of their own, with the thread counts they are told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from meshnet.domain.errors import StartError
from meshnet.weights.places import HOME_VARIABLE, store_root
from meshnet.weights.store import Store
from meshnet.wire import api
from meshnet.wire.messages import NodeMessage, NodesResponse
from meshnet.wire.runfile import RunFile

START_S = 120.0
"""A node of a large model reads gigabytes; the small test model is up in seconds."""
POLL_S = 0.05
STOP_S = 8.0


@dataclass(frozen=True, slots=True)
class Daemon:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class BenchMesh:
    """A tracker and nodes in a temporary home whose models are those of the caller's home."""

    def __init__(self, home: Path, threads: int) -> None:
        self.home = home
        self.threads = threads
        self.daemons: dict[str, Daemon] = {}
        self._http = httpx.Client(trust_env=False, timeout=10.0)

    @property
    def tracker_url(self) -> str:
        return self.url("tracker")

    def url(self, name: str) -> str:
        """Where the daemon of this name listens; waits until it says so. Raises StartError with its last log lines."""
        path = self.home / "run" / f"{name}.json"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if path.exists():
                return msgspec.json.decode(path.read_bytes(), type=RunFile).url
            self._check(name)
            time.sleep(POLL_S)
        raise StartError(f"{name} does not listen after {START_S:g} s")

    def start_tracker(self, *flags: str, inside: str = "") -> str:
        """``inside``: the network namespace that it runs in."""
        self._start("tracker", ["-m", "daemons.tracker", "--name", "tracker", "--port", "0", *flags], {}, inside)
        return self.tracker_url

    def start_node(
        self,
        name: str,
        model: str,
        shard: str,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        inside: str = "",
    ) -> None:
        require_model(model)
        command = ["-m", "daemons.node", "--name", name, "--model", model, "--shard", shard, "--port", "0"]
        command += ["--tracker", self.tracker_url, "--threads", str(self.threads), *flags]
        self._start(name, command, environ or {}, inside)

    def wait_ready(self, names: Sequence[str]) -> dict[str, NodeMessage]:
        """Nodes by name, once all of them are ready."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            ready = {n.name: n for n in self.nodes() if n.state == "ready" and n.live}
            if all(name in ready for name in names):
                return ready
            for name in names:
                self._check(name)
            time.sleep(POLL_S)
        raise StartError(f"nodes {', '.join(names)} are not ready after {START_S:g} s")

    def wait_back(self, names: Sequence[str]) -> None:
        """Until these, started again, are ready at the addresses where they listen now: a killed process keeps its
        lease for a while."""
        urls = {name: self.url(name) for name in names}
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            now = {node.name: node.url for node in self.nodes() if node.state == "ready"}
            if all(now.get(name) == url for name, url in urls.items()):
                return
            time.sleep(POLL_S)
        raise StartError(f"nodes {', '.join(names)} are not back after {START_S:g} s")

    def nodes(self) -> tuple[NodeMessage, ...]:
        answer = self._http.get(self.tracker_url + api.NODES)
        return msgspec.json.decode(answer.content, type=NodesResponse).nodes

    def close(self) -> None:
        for daemon in reversed(self.daemons.values()):
            if daemon.process.poll() is None:
                daemon.stop()
        self._http.close()

    def _start(self, name: str, command: Sequence[str], environ: Mapping[str, str], inside: str) -> None:
        log = self.home / f"{name}.log"
        (self.home / "run" / f"{name}.json").unlink(missing_ok=True)
        own = {HOME_VARIABLE: str(self.home), "OMP_NUM_THREADS": str(self.threads), **environ}
        words = ["ip", "netns", "exec", inside, sys.executable] if inside else [sys.executable]
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*words, *command], env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.daemons[name] = Daemon(name, process, log)

    def _check(self, name: str) -> None:
        daemon = self.daemons[name]
        if daemon.process.poll() is not None:
            tail = "\n".join(daemon.log.read_text("utf-8", "replace").splitlines()[-8:])
            raise StartError(f"{name} ended with {daemon.process.returncode}:\n{tail}")


def require_model(model_key: str) -> None:
    """Raises NotFound, which names the caller's store, unless the model is there."""
    Store(store_root(os.environ)).open(model_key)


@contextlib.contextmanager
def bench_mesh(threads: int) -> Iterator[BenchMesh]:
    """A fresh home, gone at the end with every process in it."""
    with tempfile.TemporaryDirectory(prefix="meshnet-bench-") as folder:
        home = Path(folder)
        models = store_root(os.environ)
        models.mkdir(parents=True, exist_ok=True)
        (home / "models").symlink_to(models)
        mesh = BenchMesh(home, threads)
        try:
            yield mesh
        finally:
            mesh.close()
