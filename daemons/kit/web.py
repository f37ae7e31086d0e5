"""HTTP serving as every daemon does it: one error shape, bounded bodies, handlers that end when the client goes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from meshnet.domain.errors import InvalidRequest, MeshnetError, NotFound, Overloaded, StartError
from meshnet.wire import problem

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LetsIn = Callable[[str, Callable[[], int]], bool]
"""An address, and what counts its connections with the new one: it goes through all, so only where that matters."""

KEEPALIVE_S = 75.0
"""Longer than the 60 s after which common proxies and SDK pools drop idle connections, so that they close first."""
SHUTDOWN_S = 3.0
"""How long open responses may take to end at a stop; the whole stop is promised within 5 s."""


@dataclass(frozen=True, slots=True)
class Site:
    """A listening server. ``host`` and ``port`` are what was really bound (port 0 asks for a free one)."""

    runner: web.AppRunner
    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    async def close(self) -> None:
        await self.runner.cleanup()


def make_app(routes: Iterable[web.AbstractRouteDef], max_body_bytes: int) -> web.Application:
    """An application whose every error is JSON of the one shape and whose bodies are bounded."""
    app = web.Application(middlewares=[answer_errors], client_max_size=max_body_bytes)
    app.add_routes(routes)
    return app


async def serve(
    app: web.Application,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    lets_in: LetsIn | None = None,
    keepalive_s: float = KEEPALIVE_S,
) -> Site:
    """Listen, with TLS when given a context. ``lets_in`` is asked of each new connection, on later addresses of this
    site too. ``keepalive_s``: until a connection without a whole request's headers ends. Raises StartError naming the
    address when it cannot be bound."""
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        keepalive_timeout=keepalive_s,
        shutdown_timeout=SHUTDOWN_S,
        access_log=None,
    )
    await runner.setup()
    if lets_in is not None and runner.server is not None:
        _ask_of_each(runner.server, lets_in)
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    bound = runner.addresses[0]
    return Site(runner, bound[0], bound[1], "https" if tls else "http")


async def serve_also(site: Site, host: str, port: int, tls: ssl.SSLContext) -> int:
    """The same application at one more address, with TLS; returns the bound port. Raises StartError."""
    more = web.TCPSite(site.runner, host, port, ssl_context=tls)
    try:
        await more.start()
    except OSError as error:
        raise StartError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    return site.runner.addresses[-1][1]


def _ask_of_each(server: web.Server, lets_in: LetsIn) -> None:
    """aiohttp tells its server of each connection and has no other place to turn one away."""
    take = server.connection_made

    def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        take(handler, transport)
        address = _address_of(transport)

        def here() -> int:
            return sum(_address_of(one.transport) == address for one in server.connections if one.transport is not None)

        if not lets_in(address, here):
            log.info("connection refused address=%s open=%d", address, here())
            transport.abort()

    server.connection_made = connection_made


def _address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """MeshnetError and aiohttp's own errors become the one JSON shape; anything else is a 500 without details."""
    try:
        return await handler(request)
    except MeshnetError as error:
        return error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(_from_http(request, error), _kept_headers(error))
    except ConnectionResetError:
        raise
    except Exception:
        log.exception("handler failed method=%s path=%s", request.method, request.path)
        return error_response(
            MeshnetError("The server failed on this request; its log says why.", code="internal_error")
        )


def _from_http(request: web.Request, error: web.HTTPException) -> MeshnetError:
    match error.status:
        case 404:
            return NotFound(f"There is nothing at {request.path}.")
        case 405:
            return InvalidRequest(f"{request.method} is not allowed on {request.path}.", code="method_not_allowed")
        case 413:
            return InvalidRequest(
                f"The body is larger than {request.app._client_max_size} bytes.", code="body_too_large"
            )
        case _:
            return InvalidRequest(f"{error.reason}.")


def _kept_headers(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def error_response(error: MeshnetError, headers: dict[str, str] | None = None) -> web.Response:
    headers = dict(headers or {})
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return web.Response(
        body=problem.encode(error), status=problem.status_of(error), headers=headers, content_type="application/json"
    )


def json_response(value: Any, status: int = 200) -> web.Response:
    """Any struct, dataclass or builtin as JSON; NaN cannot come out (msgspec writes null)."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
