"""Homes in temporary folders, fake daemons in the place of the real ones, and the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshnet.cli import processes
from meshnet.cli.home import home_of
from meshnet.weights.manifest import FileEntry, Manifest, encode_manifest, revision_of

sys.path.insert(0, str(Path(__file__).parent))
from fake_daemon import FakeMesh, tracker_server


def manifest() -> Manifest:
    """Of a model that looks stored; nobody here reads its layers."""
    layers = [FileEntry(f"layer-{n:05}.safetensors", 1, "0" * 64, "layer", n) for n in range(30)]
    files = (
        FileEntry("config.json", 2, "0" * 64, "config"),
        FileEntry("embedding.safetensors", 1, "0" * 64, "embedding"),
        FileEntry("head.safetensors", 1, "0" * 64, "head"),
        *layers,
    )
    return Manifest(
        format=1,
        model_key="smollm2-135m",
        revision=revision_of(files),
        source="test",
        architecture="LlamaForCausalLM",
        model_type="llama",
        n_layers=30,
        hidden_size=576,
        vocab_size=49152,
        context_length=8192,
        dtype="float32",
        tied_embeddings=True,
        files=files,
        has_chat_template=True,
    )


@dataclass(frozen=True)
class Machine:
    """A home of its own on which the daemons are fakes."""

    root: Path
    environ: dict[str, str]

    def run(self, *words: str, input: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """``meshnet WORDS`` as a person runs it, standing in an empty folder."""
        return subprocess.run(
            [sys.executable, "-m", "meshnet.cli", *words],
            input=input,
            env={**self.environ, **more},
            cwd=self.root / "here",
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    fakes = tmp_path / "fakes" / "daemons"
    fakes.mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (fakes / "__init__.py").touch()
    for kind in ("tracker", "node", "relay"):
        (fakes / f"{kind}.py").write_text(f"from fake_daemon import main\n\nmain({kind!r})\n")
    model = tmp_path / "home" / "models" / "smollm2-135m"
    model.mkdir(parents=True)
    (model / "manifest.json").write_bytes(encode_manifest(manifest()))
    (model / "config.json").write_text("{}")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MESHNET_")}
    environ |= {
        "MESHNET_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join((str(fakes.parent), str(Path(__file__).parent))),
        "COLUMNS": "100",
    }
    yield Machine(tmp_path, environ)
    home = home_of(environ)
    processes.stop(home, home.records(), patience_s=0)


@pytest.fixture
def mesh() -> Iterator[tuple[str, FakeMesh]]:
    """A fake tracker in this process: its address, and what it knows (two nodes that cover the model)."""
    server, fake = tracker_server()
    fake.add("n1", "http://127.0.0.1:1", "0-14")
    fake.add("n2", "http://127.0.0.1:2", "15-29")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", fake
    fake.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()
