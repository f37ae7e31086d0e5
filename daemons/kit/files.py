"""Weights files over HTTP, as trackers and nodes serve them: the manifest and what it lists, whole or in ranges.

A name is looked up in the manifest, never in the folder, so no path can be asked for. The rate is bounded for all
readers together, and so is their number: whoever serves a model still has to answer chats.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from meshnet.domain.errors import InvalidRequest, NotFound, Overloaded, WeightsError
from meshnet.weights.manifest import MANIFEST_NAME
from meshnet.weights.store import Store

PIECE_BYTES = 256 * 1024
"""One read and write. Larger gains nothing on loopback; smaller wakes the loop more often."""
DEFAULT_RATE_BYTES_S = 200_000_000
"""For all readers together: more than a gigabit line carries, less than a disk gives to one greedy neighbour."""
MAX_READERS = 16
"""Downloads at once. Others are told to come back: each holds a file open and a share of the rate."""
WRITE_S = 60.0
"""A reader that takes no piece for this long is gone; it resumes where it was."""
BURST_S = 0.25
"""How far the rate may run ahead, in seconds of it."""

_RANGE = re.compile(r"bytes=(\d{1,16})-(\d{0,16})")


class Pace:
    """Spreads bytes over time: ``owed_s`` says how long to wait after taking some."""

    def __init__(self, bytes_per_s: float, now: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._free_at = now()

    def owed_s(self, size_bytes: int) -> float:
        """Take ``size_bytes``; returns the seconds until the rate allows more."""
        now = self._now()
        self._free_at = max(self._free_at, now - BURST_S) + size_bytes / self._bytes_per_s
        return max(0.0, self._free_at - now)


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a file goes out: bytes ``start`` to ``end``, the end not included."""

    path: Path
    size_bytes: int
    start: int
    end: int
    is_range: bool
    etag: str


class FileServer:
    """``serve`` is the handler of ``GET /v1/models/{model_key}/files/{name}``."""

    def __init__(self, store: Store, now: Callable[[], float], bytes_per_s: float = DEFAULT_RATE_BYTES_S) -> None:
        self._store = store
        self._pace = Pace(bytes_per_s, now)
        self._readers = 0
        self.bytes_served = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Raises NotFound (no such model or file here), InvalidRequest (a range beyond it), Overloaded (too many)."""
        model_key, name = request.match_info["model_key"], request.match_info["name"]
        part = await asyncio.to_thread(self._find, model_key, name, request.headers.get("Range", ""))
        if self._readers >= MAX_READERS:
            raise Overloaded(f"{MAX_READERS} downloads run here already; come back in a moment.", retry_after_s=2.0)
        self._readers += 1
        try:
            return await self._send(request, part)
        finally:
            self._readers -= 1

    def _find(self, model_key: str, name: str, wanted: str) -> _Part:
        try:
            model = self._store.open(model_key)
        except (NotFound, WeightsError):
            raise NotFound(f"The model {model_key!r} is not stored here.", param="model_key") from None
        entry = next((entry for entry in model.manifest.files if entry.name == name), None)
        if entry is None and name != MANIFEST_NAME:
            raise NotFound(f"{model_key} has no file {name!r}.", param="name")
        path = model.path / name
        size = path.stat().st_size if path.is_file() else -1
        if size < 0 or (entry is not None and size != entry.size_bytes):
            raise NotFound(f"{name} of {model_key} is not held here; ask another node.", param="name")
        start, end = _range(wanted, size)
        etag = entry.sha256 if entry is not None else model.manifest.revision
        return _Part(path, size, start, end, bool(wanted), etag)

    async def _send(self, request: web.Request, part: _Part) -> web.StreamResponse:
        response = web.StreamResponse(status=206 if part.is_range else 200)
        response.content_type = "application/octet-stream"
        response.content_length = part.end - part.start
        response.headers["Accept-Ranges"] = "bytes"
        response.headers["ETag"] = f'"{part.etag}"'
        if part.is_range:
            response.headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{part.size_bytes}"
        with await asyncio.to_thread(_open_at, part) as file:
            await response.prepare(request)
            try:
                await self._copy(file, response, part.end - part.start)
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _copy(self, file: BinaryIO, response: web.StreamResponse, left: int) -> None:
        while left > 0 and (piece := await asyncio.to_thread(file.read, min(PIECE_BYTES, left))):
            async with asyncio.timeout(WRITE_S):
                await response.write(piece)
            left -= len(piece)
            self.bytes_served += len(piece)
            if (wait_s := self._pace.owed_s(len(piece))) > 0:
                await asyncio.sleep(wait_s)
        await response.write_eof()


def _open_at(part: _Part) -> BinaryIO:
    file = part.path.open("rb")
    file.seek(part.start)
    return file


def _range(wanted: str, size: int) -> tuple[int, int]:
    if not wanted:
        return 0, size
    match = _RANGE.fullmatch(wanted.strip())
    if match is None:
        raise InvalidRequest(f"Range is {wanted[:60]!r}; one range like bytes=1000- is taken.", param="Range")
    start, end = int(match[1]), int(match[2]) + 1 if match[2] else size
    if not start < min(end, size):
        raise InvalidRequest(f"Range {wanted} is outside the {size} bytes.", code="bad_range", param="Range")
    return start, min(end, size)
