"""The console through a real sshd on loopback: a terminal, a locale, and an account that can do nothing else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.bench._canned_tracker import CannedTracker
from meshnet.bench._terminal import Terminal
from tests.tui.sshd import Server, sshd
from tests.tui.terminal_text import screen_of

pytestmark = pytest.mark.slow
PATIENCE_S = 40
SFTP_INIT = b"\x00\x00\x00\x05\x01\x00\x00\x00\x03"
"""Version 3; a server answers its own."""


@pytest.fixture(scope="module")
def tracker() -> Iterator[CannedTracker]:
    with CannedTracker(n_nodes=6, n_routes=9) as served:
        yield served


@pytest.fixture(scope="module")
def server(tracker: CannedTracker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    console = f"cd {Path.cwd()} && MESHNET_TRACKER={tracker.url} LANG=C.UTF-8 {sys.executable} -m tui --read-only"
    with sshd(tmp_path_factory.mktemp("sshd"), console) as served:
        yield served


def remote(server: Server, tracker: CannedTracker, locale: str) -> list[str]:
    command = f"cd {Path.cwd()} && LANG={locale} LC_ALL= {sys.executable} -m tui --tracker {tracker.url}"
    return server.ssh(server.key, command)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_over_ssh_the_console_draws_and_leaves_clean(server: Server, tracker: CannedTracker, locale: str) -> None:
    environ = {"TERM": "xterm-256color", "PATH": "/usr/bin:/bin"}
    with Terminal(remote(server, tracker, locale), environ, 80, 24) as terminal:
        assert terminal.read_until(b"box-00>box-01", PATIENCE_S)
        terminal.read_for(1)
        text = screen_of(terminal)
        assert "policy adr" in text
        assert text.isascii() == (locale == "C")
        assert b"38;2;" not in terminal.written, "the terminal's own colours over SSH"
        for key, word in ((b"2", b"TTFT"), (b"3", b"BENCH"), (b"4", b"HELD"), (b"5", b"RPM/H"), (b"7", b"EVENT")):
            seen = len(terminal.written)
            terminal.send(key.decode())
            assert terminal.read_until(word, 10), word
            assert len(terminal.written) > seen
        terminal.send("6")
        assert terminal.read_until(b"max_tokens", 10)
        terminal.send("\x1b")
        assert terminal.read_until(b"md/raw", 10), "the keys are free"
        assert screen_of(terminal).isascii() or locale != "C"
        terminal.send("q")
        assert terminal.wait(20) == 0
        assert b"\x1b[?1049l" in terminal.written


def test_the_forced_account_gets_the_console_and_nothing_else(
    server: Server, tracker: CannedTracker, tmp_path: Path
) -> None:
    environ = {"TERM": "xterm-256color", "PATH": "/usr/bin:/bin"}
    marker = tmp_path / "made"
    with Terminal(server.ssh(server.forced, f"touch {marker}"), environ, 80, 24) as terminal:
        assert terminal.read_until(b"box-00>box-01", PATIENCE_S)
        terminal.send("e")
        assert terminal.read_until(b"read-only", 10)
        terminal.send("6")
        terminal.read_for(1)
        terminal.send("hello\r")
        terminal.read_for(2)
        assert "read-only: this console only looks" in screen_of(terminal)
        terminal.send("\x1b")
        terminal.read_for(1)
        terminal.send("q")
        assert terminal.wait(20) == 0
    assert not marker.exists()
    done = subprocess.run(
        server.ssh(server.forced, "cat", "/etc/passwd", tty=False),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert "root:" not in done.stdout
    assert "needs a terminal" in done.stderr
    denied = subprocess.run(
        server.forward(server.forced),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert denied.returncode != 0


def test_the_forced_account_reaches_no_port_and_no_files(server: Server) -> None:
    banner = f"127.0.0.1:{server.port}"  # Whoever reaches it is greeted.

    def told(key: Path, *options: str, words: tuple[str, ...] = ()) -> bytes:
        """What comes first from there, nothing where it ends without a word."""
        command = server.ssh(key, *words, tty=False)
        words = (command[0], *options, *filter(None, command[1:]))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ssh:
            assert ssh.stdin is not None and ssh.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                ssh.stdin.write(SFTP_INIT)
                ssh.stdin.flush()
            first = os.read(ssh.stdout.fileno(), 64)
            ssh.kill()
        return first

    # A key that may do anything gets both.
    assert b"SSH-2.0" in told(server.key, "-W", banner)
    assert told(server.key, "-s", words=("sftp",))[4:9] == b"\x02\x00\x00\x00\x03"
    assert told(server.forced, "-W", banner) == b""
    assert told(server.forced, "-s", words=("sftp",)) == b"", "the console instead, which has no terminal here"
