"""The whole tour on a real mesh through a real sshd, with and without UTF-8; and the account that only looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.bench._terminal import Terminal
from meshnet.weights.store import Store
from tests.tui import tour
from tests.tui.sshd import sshd
from tests.tui.terminal_text import screen_of

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.full]
UP_S = 400
"""For three nodes to load on a busy machine."""


@pytest.fixture
def home(tmp_path: Path, real_store: Store) -> Iterator[Path]:
    """A home whose demo mesh runs."""
    found = tmp_path / "home"
    found.mkdir()
    (found / "models").symlink_to(real_store.root)
    meshnet = [sys.executable, "-m", "meshnet.cli"]
    environ = {**os.environ, "MESHNET_HOME": str(found)}
    up = subprocess.run(
        [*meshnet, "up", "--timeout", str(UP_S)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    try:
        assert up.returncode == 0, up.stderr
        yield found
    finally:
        subprocess.run([*meshnet, "down"], cwd=tmp_path, env=environ, capture_output=True, check=False)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_the_tour_over_ssh(home: Path, tmp_path: Path, locale: str) -> None:
    console = f"cd {Path.cwd()} && MESHNET_HOME={home} LANG={locale} LC_ALL= {sys.executable} -m tui"
    out = tmp_path / "screens"
    with sshd(tmp_path, f"{console} --read-only") as server:
        tour.main(home, out, server.ssh(server.key, console))
        screens = {path.stem: path.read_text() for path in out.glob("*.txt")}
        assert {"routing", "calls", "chat", "pinned", "race", "stopped", "frozen", "recovered"} <= set(screens)
        assert all(text.isascii() for text in screens.values()) == (locale == "C")
        marker = tmp_path / "made"
        environ = {"TERM": "xterm-256color", "PATH": os.environ["PATH"]}
        with Terminal(server.ssh(server.forced, f"touch {marker}"), environ) as terminal:
            assert terminal.read_until(b"policy", tour.PATIENCE_S)
            terminal.send("6")
            assert terminal.read_until(b"max_tokens", 20)
            terminal.send("hello\r")
            assert terminal.read_until(b"only looks", 20), screen_of(terminal)
            terminal.send("\x11")  # ctrl+q, as the bottom line says.
            assert terminal.wait(30) == 0
        assert not marker.exists()
