"""How light the console is, measured through a pseudo-terminal: bytes, processor time, time to the first picture.

``meshnet bench console`` runs the real program on a canned tracker (40 nodes, 200 routes) as sshd would: 256 colours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from meshnet.bench._canned_tracker import CannedTracker
from meshnet.bench._terminal import Terminal

CHANGED_ROUTES = 5
CLOCK = re.compile(rb"(?:\x1b\[\d+;\d+H)?\x1b\[[0-9;]*m \d\d:\d\d:\d\d\x1b\[0m(?:\x1b\[\d+;\d+H)?")
"""One tick of the clock: move, colour, text, reset, cursor back."""
FRAME = re.compile(rb"\x1b\[\?2026[hl]|\x1b\[\d+;\d+H")
"""Synchronised output begins and ends; the cursor goes home: the frame round an update, without content."""
POLL_S = 4.0


@dataclass(slots=True)
class Figures:
    """Seconds and bytes; ``idle_cpu_share`` of one core."""

    first_picture_s: float = 0.0
    first_picture_bytes: int = 0
    idle_s: float = 0.0
    idle_bytes_per_s: float = 0.0
    idle_bytes_but_the_clock: int = 0
    idle_cpu_share: float = 0.0
    tick_bytes: int = 0
    stream_cpu_ms_per_token_first: float = 0.0
    stream_cpu_ms_per_token_last: float = 0.0
    stream_bytes_per_token: float = 0.0
    quit_s: float = 0.0


def environ() -> dict[str, str]:
    """What sshd hands a program: no COLORTERM, so 256 colours. No home of this machine's operator is read."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV") if name in os.environ}
    home = tempfile.mkdtemp(prefix="meshnet-bench-")
    return kept | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "MESHNET_HOME": home, "SSH_CONNECTION": "1 2 3 4"}


def console_words(url: str) -> list[str]:
    return [sys.executable, "-m", "tui", "--tracker", url]


def without_clock(data: bytes) -> bytes:
    """What was written beside the clock's own line."""
    return FRAME.sub(b"", CLOCK.sub(b"", data))


def measure(idle_s: float, stream: bool) -> Figures:
    """Everything, one after the other, in one console."""
    figures = Figures(idle_s=idle_s)
    with CannedTracker() as tracker, Terminal(console_words(tracker.url), environ()) as terminal:
        if not terminal.read_until(b"box-00>box-01", 30):
            raise SystemExit("the console drew no route within 30 s")
        figures.first_picture_s = terminal.times[-1][0] - terminal.started_at
        terminal.read_for(3)
        figures.first_picture_bytes = len(terminal.written)
        _idle(terminal, figures)
        _tick(terminal, tracker, figures)
        if stream:
            _stream(terminal, figures, tracker)
        _quit(terminal, figures)
    return figures


def _idle(terminal: Terminal, figures: Figures) -> None:
    cpu, began = terminal.cpu_s(), time.monotonic()
    data = terminal.read_for(figures.idle_s)
    spent = time.monotonic() - began
    figures.idle_bytes_per_s = len(data) / spent
    figures.idle_bytes_but_the_clock = len(without_clock(data))
    figures.idle_cpu_share = (terminal.cpu_s() - cpu) / spent


def _tick(terminal: Terminal, tracker: CannedTracker, figures: Figures) -> None:
    tracker.change_routes(CHANGED_ROUTES)
    figures.tick_bytes = len(without_clock(terminal.read_for(POLL_S + 1.5)))


def _stream(terminal: Terminal, figures: Figures, tracker: CannedTracker) -> None:
    """The processor time of a token in the second tenth and in the last tenth of a long answer."""
    seconds = tracker.stream_tokens / tracker.tokens_per_s
    terminal.send("6")
    terminal.read_for(1.0)
    terminal.send("go\r")
    written = len(terminal.written)
    terminal.read_for(seconds * 0.1)
    first = _cpu_over(terminal, seconds * 0.2)
    terminal.read_for(seconds * 0.45)
    last = _cpu_over(terminal, seconds * 0.2)
    terminal.read_for(seconds * 0.05 + 3)
    tokens = tracker.stream_tokens * 0.2
    figures.stream_cpu_ms_per_token_first = first / tokens * 1000
    figures.stream_cpu_ms_per_token_last = last / tokens * 1000
    figures.stream_bytes_per_token = (len(terminal.written) - written) / tracker.stream_tokens
    terminal.send("\x1b")
    terminal.read_for(1.0)


def _cpu_over(terminal: Terminal, seconds: float) -> float:
    cpu = terminal.cpu_s()
    terminal.read_for(seconds)
    return terminal.cpu_s() - cpu


def _quit(terminal: Terminal, figures: Figures) -> None:
    began = time.monotonic()
    terminal.send("q")
    if terminal.wait(10) != 0:
        raise SystemExit("the console did not end with 0 on q")
    figures.quit_s = time.monotonic() - began


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench console", description="How light the console is.")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of the idle measurement")
    parser.add_argument("--no-stream", action="store_true", help="leave out the stream of 2,000 tokens")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    figures = asdict(measure(given.idle, not given.no_stream))
    if given.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(
                f"{name.replace('_', ' '):<36} {value:.3f}"
                if isinstance(value, float)
                else f"{name.replace('_', ' '):<36} {value}"
            )
    return 0
