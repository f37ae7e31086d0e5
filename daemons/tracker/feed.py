"""``GET /v1/events``: the event log as server-sent events, resumable by the last id a client saw."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from daemons.tracker.events import EventLog
from daemons.tracker.respond import SSE_HEADERS
from meshnet.domain.errors import InvalidRequest
from meshnet.wire.openai import KEEPALIVE

IDLE_S = 5.0
"""Between comment lines while nothing happens, so that both ends notice a dead line."""
WRITE_S = 30.0
"""A reader that takes nothing for this long is gone; it comes back with its last id."""


async def feed(request: web.Request, events: EventLog) -> web.StreamResponse:
    """From after ``Last-Event-ID`` (or ``?after=``), else from now on."""
    last_id = _last_id(request, events)
    response = web.StreamResponse(headers=SSE_HEADERS)
    await response.prepare(request)
    try:
        async for batch in events.follow(last_id, IDLE_S):
            lines = b"".join(_event(event.id, msgspec.json.encode(event)) for event in batch)
            async with asyncio.timeout(WRITE_S):
                await response.write(lines or KEEPALIVE)
        await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    response.force_close()
    return response


def _event(event_id: int, data: bytes) -> bytes:
    return b"id: " + str(event_id).encode() + b"\ndata: " + data + b"\n\n"


def _last_id(request: web.Request, events: EventLog) -> int:
    text = request.headers.get("Last-Event-ID") or request.query.get("after")
    if not text:
        return events.last_id
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(f"{text!r} is no event id.", param="after")
    return int(text)
