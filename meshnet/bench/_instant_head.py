"""Nodes that cost nothing: they register, send heartbeats and answer every GENERATE at once, tokens of one letter.

``python -m meshnet.bench._instant_head URL HEADS TAILS MIDDLES TOKENS`` prints its own address once all have
registered. It also answers ``POST /plain`` with a finished chat answer: what the same question costs without a tracker.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.link import Link, Links
from daemons.kit.signing import RequestSigner
from daemons.kit.tasks import Tasks, every
from daemons.kit.web import make_app, serve
from meshnet.client.http import Client, Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import wallet_of
from meshnet.wire import api
from meshnet.wire.messages import Delta, Finished, Generate, HeartbeatRequest, Hello, RegisterRequest

MODEL = "bench-model"
N_LAYERS = 30
PROMPT_IDS = (1, 2, 3, 4, 5, 6, 7, 8)
HEARTBEAT_S = 4.0
AT_ONCE = 4
"""Heartbeats on the way: one after the other they would take longer than the interval on a busy machine. The nodes take
turns over the interval, as machines that were started apart."""
PLAIN = "/plain"
_BOOT = secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class FreeNode:
    """A registered node; ``epoch`` is its lease's."""

    node_id: str
    epoch: int
    client: TrackerClient

    async def beat(self) -> None:
        await self.client.heartbeat(self.node_id, HeartbeatRequest(epoch=self.epoch))


async def join(http: Client, tracker: str, url: str, start: int, end: int) -> FreeNode:
    """A wallet of its own, one registration. ``url`` is where a head listens; the others are never dialled."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    signer = RequestSigner(key, time.time, lambda: secrets.token_hex(16))
    client = TrackerClient(http, tracker, Credentials(signer=signer))
    answer = await client.register(
        RegisterRequest(
            wallet=wallet_of(public),
            public_key=public.hex(),
            name=f"free-{start}-{end}",
            url=url,
            model_key=MODEL,
            revision="ab" * 16,
            n_layers=N_LAYERS,
            shard_start=start,
            shard_end=end,
            hidden_size=64,
            context_length=4096,
            boot=_BOOT,
            benchmark_tokens_per_sec=100.0,
        )
    )
    return FreeNode(answer.node_id, answer.epoch, client)


def answer_to(generate: Generate, tokens: int) -> list[Delta | Finished]:
    """One delta a token, the prompt's ids on the first, as a real head."""
    session, attempt = generate.session, generate.attempt
    hop_us = tuple((0, 100) for _ in generate.hops)
    deltas: list[Delta | Finished] = [
        Delta(
            session=session,
            attempt=attempt,
            text="a",
            token_ids=(7,),
            prompt_token_ids=PROMPT_IDS if index == 0 else None,
            hop_us=hop_us,
        )
        for index in range(tokens)
    ]
    end = Finished(
        session=session,
        attempt=attempt,
        finish_reason="length",
        prompt_tokens=len(PROMPT_IDS),
        completion_tokens=tokens,
    )
    return [*deltas, end]


class FreeHead:
    """Listens for links under one node_id."""

    def __init__(self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession, tokens: int) -> None:
        self._stack, self._http, self._tokens = stack, http, tokens
        self.node_id = ""

    async def listen(self) -> str:
        loop = asyncio.get_running_loop()
        links = Links(self._hello, self._on_message, lambda link: None, self._http, loop.time)
        routes = [web.get(api.LINK, links.accept), web.post(PLAIN, self._plain)]
        site = await serve(make_app(routes, 1 << 20), "127.0.0.1", 0)
        self._stack.push_async_callback(site.close)
        self._stack.push_async_callback(links.close)
        return site.url

    def _hello(self) -> Hello:
        return Hello(peer_id=self.node_id, role="node", boot=_BOOT, wire_version=api.WIRE_VERSION)

    def _on_message(self, link: Link, message: object) -> None:
        if isinstance(message, Generate):
            for part in answer_to(message, self._tokens):
                link.post(part)

    async def _plain(self, request: web.Request) -> web.Response:
        await request.read()
        text = "a" * self._tokens
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}]})


async def main(argv: Sequence[str]) -> int:
    tracker, heads, tails, middles, tokens = argv[0], *map(int, argv[1:5])
    half = N_LAYERS // 2
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        http = await stack.enter_async_context(open_http())
        nodes: list[FreeNode] = []
        url = ""
        for _ in range(heads):
            head = FreeHead(stack, session, tokens)
            url = await head.listen()
            node = await join(http, tracker, url, 0, half - 1)
            head.node_id = node.node_id
            nodes.append(node)
        nodes += [await join(http, tracker, url, half, N_LAYERS - 1) for _ in range(tails)]
        nodes += [await join(http, tracker, url, 1 + n % half, half + n % (half - 1)) for n in range(middles)]
        print(url, flush=True)
        tasks = Tasks("free nodes")
        stack.push_async_callback(tasks.close)

        turns = cycle([nodes[start : start + AT_ONCE] for start in range(0, len(nodes), AT_ONCE)])
        between_s = HEARTBEAT_S * AT_ONCE / len(nodes)

        async def beat() -> None:
            await asyncio.gather(*(node.beat() for node in next(turns)), return_exceptions=True)

        await tasks.start(every(beat, lambda: between_s, "heartbeats"), "heartbeats")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main(sys.argv[1:])))
