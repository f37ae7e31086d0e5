"""``meshnet bench ring``: a ring over hosts that lie far from each other, against what distance alone costs.

A token passes each of S lines once, so its time is at least S one-way trips and what its hops compute. Calls that are
nested (each hop answers the one that called it) would make 2(S-1) trips. The hosts are network namespaces of one
machine whose packets a line delays; tracker, keys, tickets and proofs are those of a mesh beyond loopback.

``measure_ring`` and ``ring_tps`` are for other benchmarks: the ring on loopback, no tracker. A token's time between two
Deltas, less the microseconds that its hops say they computed, is overhead: framing, sockets, event loops, thread
hand-overs and queueing. Divided by the hops it is the price of a hop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import aiohttp
import msgspec

from daemons.kit.link import Link, Links
from meshnet.bench._far_hosts import NETWORK, address_of, enter, far_hosts
from meshnet.bench.processes import START_S, BenchMesh, bench_mesh
from meshnet.bench.report import Spread, machine, spread
from meshnet.client.http import open_http
from meshnet.client.sse import Finish, TextDelta
from meshnet.client.tracker import TrackerClient
from meshnet.domain.chat import ChatMessage, GenerationRequest, Sampling
from meshnet.domain.errors import StartError
from meshnet.weights.places import HOME_VARIABLE, store_root
from meshnet.weights.store import Store
from meshnet.wire import api, frames
from meshnet.wire.messages import Delta, Failed, Finished, Generate, Hello, HopMessage, NodeMessage

DEADLINE_S = 300.0
GOAL = 0.85
"""Of the limit, in tokens/s."""
PROMPT = "Write a long story about a lighthouse keeper who learns to listen to the sea."
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class FarRing:
    """Milliseconds a token of one stream, medians over the rounds' means; ``of_limit`` is limit / token."""

    hops: int
    one_way_ms: float
    token_ms: Spread
    computing_ms: Spread
    """What the hops say they computed."""
    trips_ms: Spread
    """The rest: lines, and all that is ours besides."""
    limit_ms: Spread
    """hops * one way + computing."""
    nested_ms: Spread
    """2 * (hops - 1) * one way + computing."""
    of_limit: Spread
    trips_of_limit: Spread
    """hops * one way / trips: without the computing, which flatters."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench ring", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--hops", type=int, nargs="+", default=[3], help="hosts of the ring; several: one ring each")
    parser.add_argument("--one-way-ms", type=float, default=20.0, help="between any two hosts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    # A stop, too, takes the hosts and the daemons down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with far_hosts(max(args.hops) + 1, args.one_way_ms / 1e3) as hosts:
            enter(hosts[0])
            rings = [_far_ring(hosts, hops, args) for hops in args.hops]
    except StartError as error:
        print(error.message, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"machine": machine(), "rings": [asdict(ring) for ring in rings]}))
    else:
        for ring in rings:
            _print(ring)
        print(" ".join(f"{name}={value}" for name, value in machine().items()))
    return 0


def _print(ring: FarRing) -> None:
    print(f"{ring.hops} hops, {ring.one_way_ms:g} ms one way")
    print(f"  a token                {ring.token_ms} ms: computing {ring.computing_ms}, the rest {ring.trips_ms}")
    print(f"  limit, {ring.hops} trips         {ring.limit_ms} ms; reached {ring.of_limit} (goal: at least {GOAL})")
    print(f"  without computing      reached {ring.trips_of_limit} of {ring.hops} trips")
    print(f"  nested calls, {2 * (ring.hops - 1)} trips  {ring.nested_ms} ms at the least")


def _far_ring(hosts: Sequence[str], hops: int, args: argparse.Namespace) -> FarRing:
    """Host 0 has the tracker and the client, the others a node each."""
    with bench_mesh(args.threads) as mesh:
        key, token = (_make_key(mesh, name, scope) for name, scope in (("me", "admin"), ("nodes", "join")))
        common = ("--profile", "lan", "--allow-cidrs", NETWORK)
        url = mesh.start_tracker("--host", address_of(0), *common, inside=hosts[0])
        n_layers = Store(store_root(os.environ)).open(args.model).manifest.n_layers
        cuts = [n_layers * number // hops for number in range(hops + 1)]
        for number, (start, after) in enumerate(pairwise(cuts), start=1):
            mesh.start_node(
                *(f"far{number}", args.model, f"{start}-{after - 1}", "--host", address_of(number), *common),
                environ={"MESHNET_JOIN_TOKEN": token},
                inside=hosts[number],
            )
        return asyncio.run(_measure_far(url, key, hops, args))


def _make_key(mesh: BenchMesh, name: str, scope: str) -> str:
    command = [sys.executable, "-m", "meshnet.cli", "keys", "create", name, "--scope", scope]
    done = subprocess.run(
        command, env={**os.environ, HOME_VARIABLE: str(mesh.home)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


async def _measure_far(url: str, key: str, hops: int, args: argparse.Namespace) -> FarRing:
    async with open_http(key) as http:
        tracker = TrackerClient(http, url)
        async with asyncio.timeout(START_S):
            while sum(node.state == "ready" for node in (await tracker.nodes()).nodes) < hops:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        await _far_answer(tracker, args.model, 8)
        rounds = [await _far_answer(tracker, args.model, args.tokens) for _ in range(args.rounds)]
    one_way = args.one_way_ms
    return FarRing(
        hops,
        one_way,
        token_ms=spread([token for token, _ in rounds]),
        computing_ms=spread([computing for _, computing in rounds]),
        trips_ms=spread([token - computing for token, computing in rounds]),
        limit_ms=spread([hops * one_way + computing for _, computing in rounds]),
        nested_ms=spread([2 * (hops - 1) * one_way + computing for _, computing in rounds]),
        of_limit=spread([(hops * one_way + computing) / token for token, computing in rounds]),
        trips_of_limit=spread([hops * one_way / (token - computing) for token, computing in rounds]),
    )


async def _far_answer(tracker: TrackerClient, model: str, tokens: int) -> tuple[float, float]:
    """Milliseconds a decoded token of one answer, as its client sees it, and those of it that were computing."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    times, call_id = [], ""
    async with tracker.chat(body) as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.text:
                times.append(time.perf_counter())
            elif isinstance(event, Finish):
                call_id = str(event.meshnet["call_id"])
    hops = (await tracker.call(call_id)).attempts[-1].hops
    return (times[-1] - times[0]) * 1e3 / (tokens - 1), sum(hop.computing_us or 0.0 for hop in hops) / 1e3


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
