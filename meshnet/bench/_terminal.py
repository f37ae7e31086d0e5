"""A program on a pseudo-terminal, as sshd gives it one: what it writes, when, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

READ_BYTES = 1 << 16
QUERIES = {b"\x1b[c": b"\x1b[?62;c", b"\x1b[?2026$p": b"\x1b[?2026;2$y"}
"""What an application asks its terminal at start, and what one that knows synchronised output answers."""


@dataclass(slots=True)
class Terminal:
    """``written`` is all that came, ``times`` (seconds, bytes) a read each. Use as a context manager."""

    words: Sequence[str]
    environ: Mapping[str, str]
    columns: int = 120
    lines: int = 40
    written: bytearray = field(default_factory=bytearray)
    times: list[tuple[float, int]] = field(default_factory=list)
    pid: int = 0
    started_at: float = 0.0
    _fd: int = -1
    _code: int | None = None

    def __enter__(self) -> Terminal:
        self.started_at = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            # Before anybody asks: a size that comes later is a race that ssh loses.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0))
            os.execvpe(self.words[0], list(self.words), {**self.environ, "COLUMNS": "", "LINES": ""})
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(5.0)
        os.close(self._fd)

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def cpu_s(self) -> float:
        """Processor seconds of the program so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def read_for(self, seconds: float) -> bytes:
        """What comes in the next ``seconds``."""
        return self._read(time.monotonic() + seconds, None)

    def read_until(self, words: bytes, seconds: float) -> bool:
        """Whether ``words`` came (since the start) within ``seconds``."""
        self._read(time.monotonic() + seconds, words)
        return words in self.written

    def _read(self, until: float, words: bytes | None) -> bytes:
        start = len(self.written)
        while (left := until - time.monotonic()) > 0 and not (words and words in self.written):
            ready, _, _ = select.select([self._fd], [], [], min(left, 0.2))
            if not ready:
                if self._ended():
                    break
                continue
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError as error:
                if error.errno == errno.EIO:  # Linux's way to say that the other end is closed.
                    break
                raise
            if not data:
                break
            self.written += data
            self.times.append((time.monotonic(), len(data)))
            for question, answer in QUERIES.items():
                if question in data:
                    os.write(self._fd, answer)
        return bytes(self.written[start:])

    def _ended(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def wait(self, seconds: float) -> int | None:
        """The exit code (negative: killed by that signal), or None if it still runs after ``seconds``."""
        until = time.monotonic() + seconds
        while not self._ended() and time.monotonic() < until:
            self.read_for(0.1)
        self.read_for(0.1)
        return self._code
