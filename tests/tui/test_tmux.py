"""The console inside a real tmux: every view at both sizes, resized while it runs, as tmux sees the screen."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshnet.bench._canned_tracker import CannedTracker
from tests.tui.debian import need

pytestmark = pytest.mark.slow
PATIENCE_S = 40
"""For a start on a loaded machine."""
VIEWS = (("2", "TTFT"), ("3", "BENCH"), ("4", "HELD"), ("5", "RPM/H"), ("7", "EVENT"), ("6", "temperature"))
"""A key and a word that only its view shows."""


class Tmux:
    """One tmux server of this test's own, with one window that runs the console."""

    def __init__(self, folder: Path, tracker: CannedTracker, locale: str) -> None:
        self._words = [need("tmux", "tmux"), "-S", str(folder / "socket"), "-f", "/dev/null"]
        self._environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": locale, "HOME": str(folder)}
        # The shell says how the console ended: tmux may miss it (the pane is dead, its status never comes).
        console = f"{sys.executable} -m tui --tracker {tracker.url}; echo ended with $?; exec sleep 600"
        self("new-session", "-d", "-x", "80", "-y", "24", "-c", str(Path.cwd()), console)

    def __call__(self, *words: str) -> str:
        done = subprocess.run([*self._words, *words], env=self._environ, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self) -> str:
        return self("capture-pane", "-p")

    def see(self, check: str | Callable[[str], bool], seconds: float = PATIENCE_S) -> str:
        """The screen once it shows the words."""
        until = time.monotonic() + seconds
        while True:
            text = self.screen()
            if check in text if isinstance(check, str) else check(text):
                return text
            assert time.monotonic() < until, f"{check!r} did not come:\n{text}"
            time.sleep(0.1)  # tmux tells nobody when its pane has changed; looking again is the only way.

    def close(self) -> None:
        subprocess.run([*self._words, "kill-server"], env=self._environ, capture_output=True, check=False)


@pytest.fixture(params=["C.UTF-8", "C"])
def tmux(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tmux]:
    with CannedTracker(n_nodes=12, n_routes=20) as tracker:
        server = Tmux(tmp_path, tracker, request.param)
        try:
            yield server
        finally:
            server.close()


def test_a_tour_in_tmux(tmux: Tmux) -> None:
    tmux.see("box-00>box-01")
    for columns, lines in ((80, 24), (120, 40)):
        tmux("resize-window", "-x", str(columns), "-y", str(lines))
        for key, word in VIEWS:
            tmux("send-keys", key)
            text = tmux.see(lambda text, word=word, lines=lines: word in text and len(text.splitlines()) == lines)
            assert max(map(len, text.splitlines())) <= columns
            assert "7 Events" in text.splitlines()[1]
        tmux("send-keys", "Escape")
        tmux.see("p route")
        tmux("send-keys", "1")
        tmux.see("why box")
    tmux("send-keys", "/box-03", "Enter", "Down", "y")
    tmux.see("meshnet chat --model")
    tmux("send-keys", "Enter")
    tmux.see("copied cli")
    tmux("send-keys", ":events", "Enter")
    tmux.see("EVENT")
    tmux("send-keys", "?")
    tmux.see("Step back in time")
    tmux("resize-window", "-x", "30", "-y", "8")
    tmux("send-keys", "Escape")  # Alone: escape and a digit at once are alt and the digit, to any terminal program.
    tmux.see(lambda text: "Everywhere" not in text and "keys" not in text)
    tmux("send-keys", "1")
    tmux("resize-window", "-x", "80", "-y", "24")
    tmux.see("ROUTE (hops)")
    tmux("send-keys", "q")
    text = tmux.see("ended with")
    assert "ROUTE" not in text, "the screen before the console is back"
    assert "ended with 0" in text
