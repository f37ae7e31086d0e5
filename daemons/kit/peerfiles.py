"""Weights files of another node, over the daemons' own connector: relayed, pinned and checked as links are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp

from meshnet.domain.errors import DeadlineExceeded, Unreachable, WeightsError
from meshnet.domain.ids import Wallet
from meshnet.wire import api, problem
from meshnet.wire.relay import dialled_url, parse_relay_url

PIECE_BYTES = 256 * 1024
CONNECT_S = 8.0
"""Through a relay the node dials back first."""
READ_S = 10.0
"""Between two pieces; a busy node's disk is slow, but not so slow."""
MAX_SMALL_BYTES = 16 * 1024 * 1024
"""Manifests and configs: 4,096 layers are 1 MB of manifest; a stranger must not fill our memory."""
MAX_ERROR_BYTES = 64 * 1024


class PeerFiles:
    """One node that may hold files of a model. ``http`` has a ``MeshConnector``; closing it is its owner's business."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, ticket_for: Callable[[Wallet], str | None] = lambda wallet: None
    ) -> None:
        """``ticket_for`` gives what the node wants to see beyond loopback, by the wallet in ``url``."""
        self.url = url.rstrip("/")
        self._ticket_for = ticket_for
        self._http = http

    async def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from ``offset``. Raises NotFound where it is not held, Overloaded, Unreachable,
        WeightsError when the answer begins elsewhere."""
        async with self._asked(model_key, name, offset) as answer:
            if offset and not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                raise WeightsError(f"{self.url} sends {name} from its beginning, though {offset} bytes are here.")
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                yield piece

    async def small(self, model_key: str, name: str) -> bytes:
        """A whole small file. Raises as ``stream``, and WeightsError for one that is not small."""
        data = bytearray()
        async for piece in self.stream(model_key, name):
            data += piece
            if len(data) > MAX_SMALL_BYTES:
                raise WeightsError(f"{name} of {model_key} at {self.url} has more than {MAX_SMALL_BYTES} bytes.")
        return bytes(data)

    @asynccontextmanager
    async def _asked(self, model_key: str, name: str, offset: int) -> AsyncIterator[aiohttp.ClientResponse]:
        path = api.MODEL_FILE.format(model_key=quote(model_key, safe=""), name=quote(name, safe=""))
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if self.url.startswith(("relay://", "tls://")):
            headers[api.TICKET] = self._ticket_for(parse_relay_url(self.url).wallet) or ""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=READ_S)
        try:
            url = dialled_url(self.url) + path
            async with self._http.get(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                if answer.status >= 300:
                    raise problem.error_from(answer.status, await answer.content.read(MAX_ERROR_BYTES))
                yield answer
        except TimeoutError:
            raise DeadlineExceeded(f"{self.url} does not answer in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self.url} is not reachable: {error or type(error).__name__}.") from None
