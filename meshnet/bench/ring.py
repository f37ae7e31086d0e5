"""The ring alone, without a tracker: a link to the head, GENERATE, and what each token's trip cost.

A token's time between two Deltas, less the microseconds that its hops say they computed, is overhead: framing, sockets,
event loops, thread hand-overs and queueing. Divided by the hops it is the price of a hop.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp
import msgspec

from daemons.kit.link import Link, Links
from meshnet.domain.chat import ChatMessage, GenerationRequest, Sampling
from meshnet.wire import api, frames
from meshnet.wire.messages import Delta, Failed, Finished, Generate, Hello, HopMessage, NodeMessage

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class HopCosts:
    """Milliseconds per hop and token; ``breakdown`` is per token over the whole ring, medians."""

    per_hop_p50: float
    per_hop_p95: float
    breakdown: dict[str, float]


async def measure_ring(nodes: Sequence[NodeMessage], prompt: str, tokens: int) -> HopCosts:
    """One greedy answer over these nodes in order, each to the end of its shard."""
    _, arrived = await _generate(nodes, prompt, tokens)
    walls, queued, computed = [], [], []
    # The first two tokens pay for prefill and for warming up.
    for (before, _), (at, delta) in pairwise(arrived[1:]):
        if len(delta.token_ids) == 1 and len(delta.hop_us) == len(nodes):
            walls.append((at - before) * 1e3)
            queued.append(sum(q for q, _ in delta.hop_us) / 1e3)
            computed.append(sum(c for _, c in delta.hop_us) / 1e3)
    overhead = sorted((w - c) / len(nodes) for w, c in zip(walls, computed, strict=True))
    return HopCosts(
        per_hop_p50=statistics.median(overhead),
        per_hop_p95=overhead[int(len(overhead) * 0.95)],
        breakdown={
            "token, wall": statistics.median(walls),
            "computing": statistics.median(computed),
            "waiting for the worker": statistics.median(queued),
            "frames, sockets, loops": statistics.median(
                w - c - q for w, c, q in zip(walls, computed, queued, strict=True)
            ),
        },
    )


async def ring_tps(nodes: Sequence[NodeMessage], prompt: str, tokens: int, ends: Sequence[int] = ()) -> float:
    """Tokens/s of one greedy answer from GENERATE to its last token: what a tracker counts, past the tracker. ``ends``:
    the last layer that each hop executes; without them each runs to the end of its shard."""
    sent_at, arrived = await _generate(nodes, prompt, tokens, ends)
    return sum(len(delta.token_ids) for _, delta in arrived) / (arrived[-1][0] - sent_at)


async def _generate(
    nodes: Sequence[NodeMessage], prompt: str, tokens: int, ends: Sequence[int] = ()
) -> tuple[float, list[tuple[float, Delta]]]:
    """When it was sent, and each delta with its time."""
    arrived: list[tuple[float, Delta]] = []
    done = asyncio.get_running_loop().create_future()

    def on_message(link: Link, message: frames.Hidden | msgspec.Struct) -> None:
        if isinstance(message, Delta):
            arrived.append((time.perf_counter(), message))
        elif isinstance(message, Failed | Finished) and not done.done():
            done.set_result(message)

    hello = Hello(peer_id="tracker.bench", role="tracker", boot="bench-boot", wire_version=api.WIRE_VERSION)
    async with aiohttp.ClientSession() as http:
        links = Links(lambda: hello, on_message, lambda link: None, http, time.monotonic)
        try:
            link = await links.to(nodes[0].node_id, nodes[0].url)
            sent_at = time.perf_counter()
            await link.send(_request(nodes, prompt, tokens, ends))
            end = await asyncio.wait_for(done, DEADLINE_S)
        finally:
            await links.close()
    if isinstance(end, Failed):
        raise SystemExit(f"the ring failed: {end.code}: {end.message}")
    return sent_at, arrived


def _request(nodes: Sequence[NodeMessage], prompt: str, tokens: int, ends: Sequence[int]) -> Generate:
    hops, start = [], 0
    for node, end in zip(nodes, ends or [node.shard_end for node in nodes], strict=True):
        hops.append(HopMessage(node.node_id, node.url, start, end, node.epoch))
        start = end + 1
    return Generate(
        session=int(time.time() * 1e6) % (1 << 62),
        attempt=0,
        call_id="bench",
        model_key=nodes[0].model_key,
        revision=nodes[0].revision,
        dtype=nodes[0].dtype,  # pyright: ignore[reportArgumentType] (a node's dtype was checked at its registration)
        hops=tuple(hops),
        request=GenerationRequest(
            (ChatMessage("user", prompt),), Sampling(temperature=0), max_tokens=tokens, ignore_eos=True
        ),
        deadline_s=DEADLINE_S,
    )
