"""The real program on a pseudo-terminal: bytes, signals, a tracker that dies, and terminals that cannot draw."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.bench._canned_tracker import CannedTracker
from meshnet.bench._terminal import Terminal
from meshnet.bench.console import console_words, without_clock
from tests.tui.terminal_text import screen_of

RESTORED = (b"\x1b[?1049l", b"\x1b[?25h")
"""Leave the alternate screen, show the cursor."""
PATIENCE_S = 40
"""For a start on a loaded machine; the figure itself is the benchmark's business."""


@pytest.fixture(scope="module")
def tracker() -> Iterator[CannedTracker]:
    with CannedTracker(n_nodes=12, n_routes=20) as served:
        yield served


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    home = {"MESHNET_HOME": str(tmp_path), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
    return home | more


@pytest.mark.slow
def test_an_idle_console_writes_only_the_clock_and_a_tick_is_small(tracker: CannedTracker, tmp_path: Path) -> None:
    with Terminal(console_words(tracker.url), environ(tmp_path, SSH_CONNECTION="1 2 3 4")) as terminal:
        assert terminal.read_until(b"box-00>box-01", PATIENCE_S)
        terminal.read_for(3)
        assert without_clock(terminal.read_for(5)) == b""
        tracker.change_routes(5)
        tick = without_clock(terminal.read_for(6))
        assert 0 < len(tick) < 2048
        terminal.send("q")
        assert terminal.wait(20) == 0
        assert all(mode in terminal.written for mode in RESTORED)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_restores_the_terminal(tracker: CannedTracker, tmp_path: Path, number: int, code: int) -> None:
    with Terminal(console_words(tracker.url), environ(tmp_path), 80, 24) as terminal:
        assert terminal.read_until(b"box-00>box-01", PATIENCE_S)
        terminal.kill(number)
        assert terminal.wait(20) == code
        assert all(mode in terminal.written for mode in RESTORED)


@pytest.mark.slow
def test_a_crash_restores_the_terminal_and_shows_no_prompt(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom tests.tui.apps import console\n"
        "from tui.__main__ import run_screen\nfrom tui.app import ConsoleApp\n"
        "class Crashing(ConsoleApp):\n"
        "    def _every_second(self):\n"
        "        private = 'the operators ' + 'prompt'\n"
        "        raise RuntimeError('broken on purpose')\n"
        "def make():\n    app = console()\n    app.__class__ = Crashing\n    return app\n"
        "sys.exit(run_screen(make))\n"
    )
    words = [sys.executable, "-c", program]
    with Terminal(words, environ(tmp_path, PYTHONPATH=str(Path.cwd())), 80, 24) as terminal:
        assert terminal.wait(PATIENCE_S) == 1
        assert all(mode in terminal.written for mode in RESTORED)
        assert b"broken on purpose" in terminal.written
        assert b"the operators prompt" not in terminal.written


@pytest.mark.slow
def test_a_tracker_that_dies_freezes_the_screen(tmp_path: Path) -> None:
    with CannedTracker(n_nodes=4, n_routes=4) as served:
        terminal = Terminal(console_words(served.url), environ(tmp_path, LC_ALL="C", NO_COLOR="1"), 80, 24)
        with terminal:
            assert terminal.read_until(b"box-00>box-01", PATIENCE_S)
            served.stop()
            assert terminal.read_until(b"FROZEN", 8.5)
            assert "box-00>box-01" in screen_of(terminal)
            text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", bytes(terminal.written))
            assert not [byte for byte in text if byte > 0x7F], "only ASCII without a UTF-8 locale"
            colours = re.findall(rb"\x1b\[([0-9;]*)m", bytes(terminal.written))
            assert not [c for c in colours if re.search(rb"(^|;)(3[0-8]|4[0-8]|9[0-7]|10[0-7])(;|$)", c)], colours[:5]
            terminal.send("q")
            assert terminal.wait(20) == 0


@pytest.mark.parametrize(
    ("more", "words"), [({}, "needs a terminal"), ({"TERM": "dumb"}, "needs a terminal")], ids=["pipe", "dumb pipe"]
)
def test_without_a_terminal_one_line_says_so(tmp_path: Path, more: dict[str, str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tui"],
        env=environ(tmp_path, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_dumb_terminal_is_refused(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-m", "tui"], environ(tmp_path, TERM="dumb"), 80, 24) as terminal:
        assert terminal.wait(PATIENCE_S) == 1
        assert b"TERM is dumb" in terminal.written
        assert b"\x1b" not in terminal.written


def test_plain_ends_quietly_when_its_reader_is_gone(tracker: CannedTracker, tmp_path: Path) -> None:
    words = f"{sys.executable} -m tui --plain --once --tracker {tracker.url} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", words],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "node box-" in done.stdout


def test_plain_imports_no_textual(tracker: CannedTracker, tmp_path: Path) -> None:
    program = (
        "import sys; from tui.__main__ import main\n"
        f"code = main(['--plain', '--once', '--tracker', {tracker.url!r}])\n"
        "assert 'textual' not in sys.modules and 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "route box-00>box-01: proven" in done.stdout
