"""A tracker that only answers: a mesh of any size as JSON over HTTP, changed by hand between polls."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from meshnet.wire import api
from meshnet.wire.messages import (
    CoverageLayer,
    CoverageModel,
    CoverageResponse,
    HardwareMessage,
    Health,
    ModelMessage,
    ModelsResponse,
    NodeMessage,
    NodesResponse,
)
from meshnet.wire.routing import (
    CallsResponse,
    CandidateMessage,
    RouteHop,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
)

MODEL = "bench-30b"
N_LAYERS = 48
GIB = 1 << 30
FLUSH_TOKENS = 5
"""Tokens of one chunk in the canned stream: what a mesh at 100 tokens/s sends every 50 ms."""


def nodes(count: int) -> tuple[NodeMessage, ...]:
    """Half of them hold the first half of the layers, half the second."""
    found = []
    for i in range(count):
        start, end = (0, N_LAYERS // 2 - 1) if i % 2 == 0 else (N_LAYERS // 2, N_LAYERS - 1)
        wallet = f"bench{i:03d}".ljust(20, "q")
        found.append(
            NodeMessage(
                node_id=f"{wallet}.{start}-{end}",
                wallet=wallet,
                name=f"box-{i:02d}",
                url="http://127.0.0.1:1",
                model_key=MODEL,
                revision="0123abcd",
                n_layers=N_LAYERS,
                shard_start=start,
                shard_end=end,
                dtype="bfloat16",
                context_length=8192,
                epoch=1,
                state="ready",
                live=True,
                suspect=False,
                heartbeat_age_s=2.0,
                joined_age_s=9_000.0,
                benchmark_tokens_per_sec=20.0 + i,
                kv_budget_bytes=4 * GIB,
                kv_free_bytes=3 * GIB,
                memory_budget_bytes=24 * GIB,
                weights_bytes=12 * GIB,
                hardware=HardwareMessage("AMD EPYC 7543", 32, 64, 128 * GIB, 60 * GIB),
            )
        )
    return tuple(found)


def candidates(rows: tuple[NodeMessage, ...], count: int, seed: int = 1) -> tuple[CandidateMessage, ...]:
    rng = random.Random(seed)
    heads = [row for row in rows if row.shard_start == 0]
    tails = [row for row in rows if row.shard_start > 0]
    found = []
    for head in heads:
        for tail in tails:
            hops = tuple(
                RouteHop(
                    node_id=n.node_id, name=n.name, start_layer=n.shard_start, end_layer=n.shard_end, computing_us=9e3
                )
                for n in (head, tail)
            )
            tps = rng.uniform(5, 45)
            found.append(
                CandidateMessage(
                    signature=f"{MODEL} | {head.node_id}[{head.shard_start}-{head.shard_end}] -> "
                    f"{tail.node_id}[{tail.shard_start}-{tail.shard_end}]",
                    hops=hops,
                    status="proven",
                    prior_tps=20.0,
                    learned_tps=tps,
                    spread_tps=1.0,
                    coefficient=tps / 45,
                    expected_share=1 / count,
                    actual_share=1 / count,
                    samples=100,
                    weight=3.0,
                    age_s=120.0,
                )
            )
    return tuple(found[:count])


class CannedTracker:
    """Serves in a thread of its own; ``change_routes`` is what the next poll will see."""

    def __init__(self, n_nodes: int = 40, n_routes: int = 200, stream_tokens: int = 2000) -> None:
        self.nodes = nodes(n_nodes)
        self.candidates = candidates(self.nodes, n_routes)
        self.polls = 0
        self.stream_tokens = stream_tokens
        self.tokens_per_s = 100.0
        self.url = ""
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="canned-tracker", daemon=True)

    def __enter__(self) -> CannedTracker:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the door, as a tracker that is killed; once more is nothing."""
        if self._loop and self._stop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def change_routes(self, count: int) -> None:
        """The learned speed of the first ``count`` routes moves; their shares and so their order stay."""
        moved = tuple(
            msgspec.structs.replace(row, learned_tps=(row.learned_tps or 1) * 1.03, samples=row.samples + 1)
            for row in self.candidates[:count]
        )
        self.candidates = moved + self.candidates[count:]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        for path, answer in (
            (api.NODES, self._nodes),
            (api.MODELS, self._models),
            (api.COVERAGE, self._coverage),
            (api.ROUTING, self._routing),
            (api.CALLS, lambda: CallsResponse(calls=())),
            (api.HEALTH, lambda: Health("ok", "bench")),
        ):
            app.router.add_get(path, self._json(answer))
        app.router.add_post(api.CHAT, self._chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _json(self, answer: object):
        async def handle(_request: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(answer()), content_type="application/json")  # type: ignore[operator]

        return handle

    def _nodes(self) -> NodesResponse:
        self.polls += 1
        return NodesResponse(self.nodes)

    def _models(self) -> ModelsResponse:
        model = ModelMessage(
            id=MODEL,
            created=0,
            n_layers=N_LAYERS,
            context_length=8192,
            nodes=len(self.nodes),
            coverage_deficit=0.0,
            ready=True,
        )
        return ModelsResponse((model,))

    def _coverage(self) -> CoverageResponse:
        held = [tuple(n.node_id for n in self.nodes if n.shard_start <= i <= n.shard_end) for i in range(N_LAYERS)]
        model = CoverageModel(
            model_key=MODEL,
            n_layers=N_LAYERS,
            depths=tuple(map(len, held)),
            gaps=(),
            single=(),
            coverage_deficit=0.0,
            layers=tuple(CoverageLayer(i, ids) for i, ids in enumerate(held)),
        )
        return CoverageResponse((model,))

    def _routing(self) -> RoutingResponse:
        config = RoutingConfigMessage(
            policy="adr", explore_share=0.1, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8
        )
        return RoutingResponse(
            config=config, models=(RoutingModel(model_key=MODEL, topology_epoch=1, candidates=self.candidates),)
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", api.MODE: "exploit"})
        await response.prepare(request)
        async for text in self._words():
            chunk = {"id": "call-bench", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        last = {"id": "call-bench", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        await response.write(b"data: " + msgspec.json.encode(last) + b"\n\ndata: [DONE]\n\n")
        return response

    async def _words(self) -> AsyncIterator[str]:
        for i in range(0, self.stream_tokens, FLUSH_TOKENS):
            end = "\n\n" if i % 100 == 100 - FLUSH_TOKENS else " "
            yield " ".join(f"word{j}" for j in range(i, i + FLUSH_TOKENS)) + end
            await asyncio.sleep(FLUSH_TOKENS / self.tokens_per_s)
