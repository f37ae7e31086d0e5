"""A TCP proxy between two daemons that does to their bytes what bad networks do."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from random import Random
from typing import Literal
from urllib.parse import urlsplit

from daemons.kit.tasks import Tasks

Mode = Literal["pass", "black_hole", "half_open", "refuse"]
CHUNK = 64 * 1024


@dataclass(slots=True)
class Weather:
    """What happens to each piece of bytes, both ways. May be changed at any time."""

    mode: Mode = "pass"
    """black_hole: bytes vanish, connections stay. half_open: those to the target arrive, answers vanish. refuse: new
    connections are closed at once."""
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: no limit."""
    slice_bytes: int = CHUNK
    """Pieces are cut to this size."""


class FaultProxy:
    """Listens on a free port and dials ``target`` (a URL; may be set later)."""

    def __init__(self, target: str = "", weather: Weather | None = None, seed: int = 0) -> None:
        self.target = target
        self.weather = weather or Weather()
        self._rng = Random(seed)
        self._tasks = Tasks("proxy")
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def connections(self) -> int:
        return len(self._open) // 2

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        await self._tasks.close()

    def reset(self) -> None:
        """Every connection ends now, with RST."""
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        self.weather = Weather()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = urlsplit(self.target)
        try:
            if self.weather.mode == "refuse":
                raise ConnectionError
            far_reader, far_writer = await asyncio.open_connection(to.hostname, to.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._open |= ends
        ways = (
            self._tasks.start(self._copy(reader, far_writer, answers=False), "there"),
            self._tasks.start(self._copy(far_reader, writer, answers=True), "back"),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.transport.abort()
            self._open -= ends
            for way in ways:
                way.cancel()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                for start in range(0, len(data), self.weather.slice_bytes):
                    await self._deliver(data[start : start + self.weather.slice_bytes], writer, answers=answers)

    async def _deliver(self, piece: bytes, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        weather = self.weather
        delay_s = weather.latency_s + weather.jitter_s * self._rng.random()
        if weather.bytes_per_s:
            delay_s += len(piece) / weather.bytes_per_s
        if delay_s:
            await asyncio.sleep(delay_s)
        if weather.mode == "black_hole" or (weather.mode == "half_open" and answers):
            return
        writer.write(piece)
        await writer.drain()
