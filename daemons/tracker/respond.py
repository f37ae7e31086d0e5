"""A call's answer as the client reads it: SSE or one JSON body, headers, keep-alives, and errors of the one shape.

Headers of a stream wait for the first text, 0.7 s at most: an error in that time still has a status of its own; later
ones are an error event, after which no [DONE] comes.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from daemons.tracker.calls import Call, summary
from daemons.tracker.chat import ChatService
from daemons.tracker.outbox import Text
from meshnet.domain.errors import MeshnetError
from meshnet.wire import api
from meshnet.wire.messages import Finished, TokenLogprob
from meshnet.wire.openai import DONE, KEEPALIVE, Answer, ChatRequest, Usage, error_event

log = logging.getLogger(__name__)

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx would hold the stream back otherwise.
    "X-Accel-Buffering": "no",
}
End = Text | Finished | MeshnetError | None


async def whole(service: ChatService, chat: ChatRequest) -> web.Response:
    """One JSON body after the last token. Cancelled (the client hung up), it cancels the call."""
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    async with service.call(chat) as call:
        while True:
            match await call.outbox.get(service.deadlines.keepalive_s):
                case Text(text, more):
                    texts.append(text)
                    logprobs.extend(more)
                case Finished() as finished:
                    break
                case MeshnetError() as error:
                    raise error
        wants_logprobs = chat.generation.sampling.logprobs is not None
        body = _answer(call).completion(
            "".join(texts),
            finished.finish_reason,
            Usage(finished.prompt_tokens, finished.completion_tokens),
            logprobs if wants_logprobs else None,
            summary(service.wall.get(call.call_id)),
        )
        return web.Response(body=body, content_type="application/json", headers=_headers(call))


async def stream(request: web.Request, service: ChatService, chat: ChatRequest) -> web.StreamResponse:
    """Server-sent events."""
    async with service.call(chat) as call:
        first = await call.outbox.get(service.deadlines.headers_s)
        while first is None and not call.tries:  # No route yet: if none comes, that is a status of its own.
            first = await call.outbox.get(service.deadlines.headers_s)
        if isinstance(first, MeshnetError):
            raise first
        response = web.StreamResponse(headers={**SSE_HEADERS, **_headers(call)})
        writer = _Writer(response, service.deadlines.write_s)
        try:
            await response.prepare(request)
            await _write_call(writer, call, service, first)
        except ConnectionResetError:
            log.info("client gone call=%s", call.call_id)
        except TimeoutError:
            log.warning("client cut call=%s reason=slow unread_s=%g", call.call_id, service.deadlines.write_s)
            _drop(request)
        return response


async def _write_call(writer: _Writer, call: Call, service: ChatService, item: End) -> None:
    answer = _answer(call)
    await writer.write(answer.first_chunk())
    while True:
        match item:
            case None:
                await writer.write(KEEPALIVE)
            case Text(text, logprobs):
                await writer.write(answer.delta_chunk(text, logprobs))
            case Finished():
                await writer.write(_last(answer, call, service, item))
                await writer.end()
                return
            case MeshnetError():
                await writer.write(error_event(item))
                writer.hang_up_after()
                await writer.end()
                return
        item = await call.outbox.get(service.deadlines.keepalive_s)


def _last(answer: Answer, call: Call, service: ChatService, finished: Finished) -> bytes:
    chunks = answer.last_chunk(finished.finish_reason, summary(service.wall.get(call.call_id)))
    if call.request.include_usage:
        chunks += answer.usage_chunk(Usage(finished.prompt_tokens, finished.completion_tokens))
    return chunks + DONE


class _Writer:
    """Writes with a deadline. Raises TimeoutError when the client takes nothing for ``write_s``."""

    def __init__(self, response: web.StreamResponse, write_s: float) -> None:
        self._response = response
        self._write_s = write_s

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(self._write_s):
            await self._response.write(data)

    async def end(self) -> None:
        async with asyncio.timeout(self._write_s):
            await self._response.write_eof()

    def hang_up_after(self) -> None:
        self._response.force_close()


def _drop(request: web.Request) -> None:
    """Close the connection without waiting for what the client does not read."""
    if request.transport is not None:
        request.transport.abort()


def _answer(call: Call) -> Answer:
    return Answer(call.call_id, call.request.model, int(call.created))


def _headers(call: Call) -> dict[str, str]:
    """The call's, and its route's once one is chosen."""
    headers: dict[str, str] = {api.CALL_ID: call.call_id}
    if call.tries:
        decision = call.tries[-1].plan.decision
        headers |= {
            api.ROUTE: decision.signature,
            api.MODE: decision.mode,
            api.ATTEMPT: str(call.tries[-1].number),
        }
    return headers
