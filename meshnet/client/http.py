"""How every client speaks HTTP: one pool per process, named timeouts, errors of the one tree.

Knows no path and no struct of any daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from meshnet.domain.errors import NOT_UTF8, DeadlineExceeded, InvalidRequest, MeshnetError, StartError, Unreachable
from meshnet.wire import problem

T = TypeVar("T")

Client = httpx.AsyncClient
"""What ``open_http`` gives, for signatures of those who may not know httpx."""

JSON_HEADERS = {"Content-Type": "application/json"}
MAX_ERROR_BYTES = 64 * 1024
"""How much of an error's body is read: ours are under 8 KiB; whatever else answers must not fill our memory."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``read_s`` is between two pieces of one answer."""

    connect_s: float = 2.0
    read_s: float = 10.0
    write_s: float = 10.0
    pool_s: float = 2.0

    def as_httpx(self) -> httpx.Timeout:
        return httpx.Timeout(connect=self.connect_s, read=self.read_s, write=self.write_s, pool=self.pool_s)


CONTROL = Timeouts()
"""Registration, lists, health: answered from memory, so 10 s of silence is a broken daemon."""
STREAM = Timeouts(read_s=60.0)
"""Chat and events: a keep-alive line comes every 5 s, so a minute of silence is a dead line."""

ANSWER = Timeouts(read_s=900.0)
"""A whole answer comes as one piece after the last token; the tracker itself gives up after 10 minutes."""


class Signer(Protocol):
    """Signs requests as a wallet: ``daemons.kit.signing`` fulfils it; programs without a wallet have none."""

    def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers to add."""
        ...

    def learn(self, headers: Mapping[str, str]) -> bool:
        """What a refusal's headers say of how to sign; whether the same request is worth another try."""
        ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests to one daemon carry: a key (``mnk_…`` or ``mnj_…``), a wallet's signature, both or neither."""

    key: str = ""
    signer: Signer | None = None


NOBODY = Credentials()


def open_http(key: str = "", ca_file: str = "") -> httpx.AsyncClient:
    """The process's one client: each costs about 50 ms of TLS set-up. The environment's proxies are not asked, since
    a mesh's own addresses are behind none. ``key`` goes with every request, whatever daemon it is for: only programs
    of the operator or a user give one. ``ca_file``: PEM of one's own CA (meshnet ca init). Raises StartError."""
    # No bound on connections: each open stream holds one, and who opens streams bounds them.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30.0)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    return httpx.AsyncClient(
        trust_env=False,
        timeout=CONTROL.as_httpx(),
        limits=limits,
        follow_redirects=False,
        headers=headers,
        verify=_trusting(ca_file) if ca_file else True,
    )


def _encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise InvalidRequest("The text holds bytes that are not UTF-8; write it in UTF-8.", code=NOT_UTF8) from None


def _trusting(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=Path(ca_file))
    except OSError as error:
        raise StartError(f"Cannot use the CA file {ca_file}: {error.strerror or error}.") from None


class Door:
    """One daemon's address, with the sentence that helps when nobody answers there."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, what: str, hint: str, credentials: Credentials = NOBODY
    ) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._what = what
        self._hint = hint
        self._credentials = credentials

    async def ask(
        self,
        method: str,
        path: str,
        into: type[T],
        body: Any = None,
        params: Mapping[str, str] | None = None,
        timeouts: Timeouts = CONTROL,
    ) -> T:
        """Send, wait, decode. Raises the MeshnetError that the answer carries, Unreachable or DeadlineExceeded."""
        response = await self._send(method, path, body, params, timeouts)
        if response.status_code >= 400:
            raise problem.error_from(response.status_code, response.content[:MAX_ERROR_BYTES])
        if into is bytes:
            return response.content  # type: ignore[return-value]
        try:
            return msgspec.json.decode(response.content or b"null", type=into)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MeshnetError(
                f"{self.url}{path} answered what no {self._what} of this version says: {error}.", code="bad_answer"
            ) from None

    async def _send(
        self, method: str, path: str, body: Any, params: Mapping[str, str] | None, timeouts: Timeouts
    ) -> httpx.Response:
        with self.errors():
            response = await self._http.send(self._request(method, path, body, params, None, timeouts))
            if self._may_retry(response):
                response = await self._http.send(self._request(method, path, body, params, None, timeouts))
            return response

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        timeouts: Timeouts,
    ) -> httpx.Request:
        content = None if body is None else _encoded(body)
        sent = {**(JSON_HEADERS if content is not None else {}), **(headers or {})}
        if self._credentials.key:
            sent["Authorization"] = f"Bearer {self._credentials.key}"
        request = self._http.build_request(
            method, self.url + path, content=content, headers=sent, params=params, timeout=timeouts.as_httpx()
        )
        if self._credentials.signer is not None:
            request.headers.update(self._credentials.signer.sign(method, str(request.url), content or b""))
        return request

    def _may_retry(self, response: httpx.Response) -> bool:
        """A first request cannot know which process of the tracker to sign for: its refusal says so."""
        signer = self._credentials.signer
        return signer is not None and response.status_code in (401, 403) and signer.learn(response.headers)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Reading]:
        """An answer that is read as it comes. Leaving the block before its end closes the connection, even if it is
        left by a cancellation and cancelled again meanwhile. Raises as ``ask``."""
        with self.errors():
            response = await self._begin(self._request(method, path, body, params, headers, STREAM))
            if self._may_retry(response):
                await response.aclose()
                response = await self._begin(self._request(method, path, body, params, headers, STREAM))
        reading = Reading(response, self)
        try:
            if response.status_code >= 400:
                with self.errors():
                    answer = await response.aread()
                reading.ended = True
                raise problem.error_from(response.status_code, answer[:MAX_ERROR_BYTES])
            yield reading
        finally:
            reading.hang_up()
            await response.aclose()

    async def _begin(self, request: httpx.Request) -> httpx.Response:
        """Send, up to the answer's headers. However often we are cancelled, httpx is cancelled once: a second cancel
        would meet its clean-up and leave the connection open, with an answer running behind it."""
        answers: list[httpx.Response | httpx.HTTPError | httpx.InvalidURL] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._sent(request, answers))
        except asyncio.CancelledError:
            for late in answers:  # The headers came with the cancel.
                if isinstance(late, httpx.Response):
                    Reading(late, self).hang_up()
            raise
        if isinstance(answers[0], httpx.Response):
            return answers[0]
        raise answers[0]

    async def _sent(
        self, request: httpx.Request, answers: list[httpx.Response | httpx.HTTPError | httpx.InvalidURL]
    ) -> None:
        try:
            answers.append(await self._http.send(request, stream=True))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answers.append(error)

    @contextlib.contextmanager
    def errors(self) -> Any:
        """httpx's errors as ours."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise Unreachable(f"{self._what} at {self.url} is not reachable; {self._hint}") from None
        except httpx.TimeoutException:
            raise DeadlineExceeded(f"{self._what} at {self.url} does not answer in time.") from None
        except httpx.InvalidURL as error:
            raise Unreachable(f"{self.url!r} is no address: {error}.") from None
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{self._what} at {self.url} broke the connection: {error or type(error).__name__}.",
                code="connection_lost",
            ) from None


class Reading:
    """A streamed answer: ``headers``, and its ``lines`` once."""

    def __init__(self, response: httpx.Response, door: Door) -> None:
        self.headers: Mapping[str, str] = response.headers
        self.ended = False
        self._response = response
        self._door = door
        network = response.extensions.get("network_stream")
        self._line = network.get_extra_info("socket") if network is not None else None

    async def lines(self) -> AsyncIterator[str]:
        """Raises as ``Door.ask``."""
        with self._door.errors():
            async for line in self._response.aiter_lines():
                yield line
        self.ended = True

    async def pieces(self) -> AsyncIterator[bytes]:
        """The raw bytes as they come. Raises as ``Door.ask``."""
        with self._door.errors():
            async for piece in self._response.aiter_raw():
                yield piece
        self.ended = True

    def hang_up(self) -> None:
        """End the connection below httpx and without an await: ``aclose`` leaves it open when a second cancellation
        hits it, and the daemon would go on generating for nobody. An answer that was read to its end has given its
        connection back, for others to use: that one stays."""
        if not self.ended and self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
