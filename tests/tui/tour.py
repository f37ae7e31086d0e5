"""A tour of the console on a real mesh, inside tmux: ``python -m tests.tui.tour HOME OUT [COMMAND ...]``.

HOME is the home of a running mesh (``MESHNET_HOME=HOME meshnet up``) whose tracker this may kill and start again. Each
step asserts what an operator must see and writes the screen as text to OUT. COMMAND shows the console in tmux's place:
``ssh -tt host meshnet console``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshnet.bench._terminal import Terminal
from tests.tui.terminal_text import Watched

PATIENCE_S = 90.0
"""For one short answer on a loaded machine."""


class Tour:
    """One console on one mesh."""

    def __init__(self, home: Path, out: Path, through: Sequence[str] = ()) -> None:
        """``through`` is a command line that shows the console by itself, as ssh does; without it tmux does."""
        self.home, self.out = home, out
        self.run = json.loads((home / "run" / "tracker.json").read_text())
        environ = {"MESHNET_HOME": str(home), "TERM": "xterm-256color", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.terminal = Terminal(through or in_tmux(out), environ, 120, 40)
        self.screen = Watched(self.terminal, whole_updates=bool(through))

    def see(self, words: str, seconds: float = PATIENCE_S) -> float:
        """Wait until the screen shows ``words``; returns how long that took."""
        began = time.monotonic()
        while words not in self.screen.text():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"{words!r} did not come within {seconds} s:\n{self.screen.text()}")
            self.terminal.read_for(0.1)
        return time.monotonic() - began

    def press(self, *keys: str) -> None:
        for key in keys:
            self.terminal.send(key)
            self.terminal.read_for(0.5)

    def keep(self, name: str) -> None:
        text = "\n".join(line.rstrip() for line in self.screen.text().splitlines()).rstrip() + "\n"
        (self.out / f"{name}.txt").write_text(text)
        print(f"{name}: ok", flush=True)

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.run["url"] + path, timeout=5) as answer:
            return json.load(answer)

    def sessions(self) -> int:
        """Open sessions of all nodes, asked of the nodes themselves."""
        found = 0
        for node in self.ask("/v1/nodes")["nodes"]:
            with urllib.request.urlopen(node["url"] + "/v1/status", timeout=5) as answer:
                found += json.load(answer)["sessions"]
        return found


def in_tmux(out: Path) -> list[str]:
    """The console in a tmux of this tour's own, with the whole screen."""
    tmux = ["tmux", "-S", str(out / "tmux.socket"), "-f", "/dev/null", "new-session", "-x", "120", "-y", "40"]
    return [*tmux, f"tmux set status off; tmux set -s escape-time 10; exec {sys.executable} -m tui"]


def walk(tour: Tour) -> None:
    tour.see("policy")
    tour.press("6")
    tour.terminal.send(":set temperature=0 seed=7 max_tokens=48\r")  # A small model at ease never ends.
    tour.see("max_tokens 48")
    for country in ("France", "Italy", "Spain", "Germany", "Japan", "Egypt"):
        tour.terminal.send(f"What is the capital of {country}?\r")
        tour.see("streaming", 20)
        until(lambda: "streaming" not in tour.screen.text(), tour, PATIENCE_S)
        tour.terminal.read_for(1.0)
    tour.keep("chat")
    tour.press("\x1b", "1")
    tour.see("+ proven")
    tour.terminal.read_for(5)
    tour.keep("routing")
    for key, name, words in (
        ("2", "calls", "TTFT"), ("3", "nodes", "BENCH"), ("4", "layers", "held by no node: none"),
        ("5", "models", "demand of smollm2"), ("7", "events", "call.finished"),
    ):  # fmt: skip
        tour.press(key)
        tour.see(words)
        tour.keep(name)
    tour.press("1", "c")
    tour.see("pinned")
    tour.terminal.send("What is the capital of Peru?\r")
    until(lambda: "  stop" in tour.screen.text() or "  length" in tour.screen.text(), tour, PATIENCE_S * 2)
    tour.terminal.read_for(5)
    tour.keep("pinned")
    tour.press("\x1b", "N", "1", "b")
    tour.see("B auto")
    tour.terminal.send("What is the capital of Cuba?\r")
    until(lambda: "x as fast" in tour.screen.text(), tour, PATIENCE_S * 3)
    tour.terminal.read_for(5)
    tour.keep("race")


def stop_a_stream(tour: Tour) -> None:
    """Esc on a long answer: within a second no node holds a session of it."""
    tour.press("\x1b", "b", "N", "i")
    tour.terminal.send(":max_tokens auto\r")
    tour.terminal.send("Write a very long story about a lighthouse keeper and the sea.\r")
    until(lambda: tour.sessions() > 0, tour, 30)
    tour.terminal.read_for(3)
    tour.terminal.send("\x1b")
    began = time.monotonic()
    until(lambda: tour.sessions() == 0, tour, 5)
    took = time.monotonic() - began
    print(f"no session left after {took:.2f} s")
    assert took < 1.5, took
    tour.see("  stopped", 10)  # Under the answer, not only on the line of problems.
    tour.keep("stopped")


def until(check: Any, tour: Tour, seconds: float) -> None:
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s:\n{tour.screen.text()}")
        tour.terminal.read_for(0.1)


def kill_the_tracker(tour: Tour) -> None:
    """FROZEN within 8 s, and live again within 8 s of the tracker's return."""
    tour.press("\x1b", "1")
    tour.see("live")
    os.kill(tour.run["pid"], signal.SIGKILL)
    print(f"FROZEN after {tour.see('FROZEN', 8.5):.1f} s")
    tour.terminal.read_for(6)
    tour.keep("frozen")
    meshnet = [sys.executable, "-m", "meshnet.cli", "up"]
    environ = {**os.environ, "MESHNET_HOME": str(tour.home)}
    with subprocess.Popen(meshnet, env=environ, cwd=tour.home, stdout=subprocess.DEVNULL) as up:
        until(lambda: answers(tour), tour, 30)
        print(f"live again {tour.see('live', 8.5):.1f} s after the tracker answered")
        assert up.wait(PATIENCE_S) == 0
    tour.see("nodes 3/3", 30)
    tour.terminal.read_for(5)
    tour.keep("recovered")


def answers(tour: Tour) -> bool:
    try:
        tour.ask("/healthz")
    except OSError:
        return False
    return True


def main(home: Path, out: Path, through: Sequence[str] = ()) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tour = Tour(home, out, through)
    with tour.terminal as terminal:
        walk(tour)
        stop_a_stream(tour)
        kill_the_tracker(tour)
        terminal.send("q")
        assert terminal.wait(10) == 0
    print("quit: ok")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
