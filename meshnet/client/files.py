"""Weights files of a tracker or a node, streamed from an offset. What to do with the bytes is for others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import quote

import httpx

from meshnet.client.http import NOBODY, Credentials, Door
from meshnet.domain.errors import WeightsError
from meshnet.wire import api

MAX_SMALL_BYTES = 16 * 1024 * 1024
"""Manifests and configs: 4,096 layers are 1 MB of manifest; a stranger must not fill our memory."""


class FilesClient:
    """One daemon that may hold files of a model."""

    def __init__(self, http: httpx.AsyncClient, url: str, credentials: Credentials = NOBODY) -> None:
        self._door = Door(http, url, "daemon", "it may have left; others are tried.", credentials)

    @property
    def url(self) -> str:
        return self._door.url

    async def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from ``offset``. Raises NotFound where it is not held, Overloaded, Unreachable,
        WeightsError when the answer begins elsewhere."""
        headers = {"Range": f"bytes={offset}-"} if offset else None
        async with self._door.stream("GET", _path(model_key, name), headers=headers) as reading:
            if offset and not reading.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                raise WeightsError(f"{self.url} sends {name} from its beginning, though {offset} bytes are here.")
            async for piece in reading.pieces():
                yield piece

    async def small(self, model_key: str, name: str) -> bytes:
        """A whole small file. Raises as ``stream``, and WeightsError for one that is not small."""
        data = bytearray()
        async for piece in self.stream(model_key, name):
            data += piece
            if len(data) > MAX_SMALL_BYTES:
                raise WeightsError(f"{name} of {model_key} at {self.url} has more than {MAX_SMALL_BYTES} bytes.")
        return bytes(data)


def _path(model_key: str, name: str) -> str:
    return api.MODEL_FILE.format(model_key=quote(model_key, safe=""), name=quote(name, safe=""))
