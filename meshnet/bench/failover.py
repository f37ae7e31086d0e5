"""``meshnet bench failover``: kill -9 a node in the middle of an answer, again and again, and time what follows.

Two nodes hold each third of the model's layers. ``detect_ms``: from the signal until the tracker's event says which
node broke. ``pause_ms``: the client's longest gap after the kill, less the median gap of that answer. The position
killed goes round; the victim is started again before the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from daemons.kit.tasks import Tasks
from meshnet.bench.processes import BenchMesh, bench_mesh
from meshnet.bench.report import machine, spread
from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta
from meshnet.client.tracker import TrackerClient
from meshnet.domain.shards import Shard

PROMPT = "Tell me about the sea."
KILL_AT = 12
"""Token at which the node is killed: by then the gap between tokens is known."""
N_TOKENS = 40
POSITIONS = ("head", "middle", "tail")
EVENT_S = 10.0
"""Until the tracker must have said who broke."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One run."""

    position: str
    detect_ms: float
    pause_ms: float
    gap_ms: float
    same_text: bool
    code: str


@dataclass(slots=True)
class Heard:
    """An answer's pieces with the time of each; ``culprit_at``: Unix seconds, to the millisecond, at which
    the tracker named the node (it tells only after it has written that down)."""

    text: str = ""
    times: list[float] = field(default_factory=list)
    culprit_at: float | None = None
    culprit: str = ""
    code: str = ""
    told: asyncio.Event = field(default_factory=asyncio.Event)


def thirds(n_layers: int) -> list[Shard]:
    cuts = [0, n_layers // 3, 2 * n_layers // 3, n_layers]
    return [Shard(start, end - 1) for start, end in pairwise(cuts)]


def request(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": N_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


async def follow(client: TrackerClient, heard: Heard, following: asyncio.Event) -> None:
    """Note the tracker's next "call.rerouted"."""
    async with client.events() as events:
        following.set()
        async for event in events:
            if event.kind == "call.rerouted":
                heard.culprit_at, heard.culprit = event.at, event.node_id or ""
                heard.code = str(event.data.get("code"))
                heard.told.set()
                return


async def one_run(mesh: BenchMesh, client: TrackerClient, model: str, position: int, expected: str) -> Kill:
    names = {node.node_id: node.name for node in mesh.nodes()}
    heard, tasks, victim = Heard(), Tasks("bench"), ""
    killed_at = killed_wall = 0.0
    following = asyncio.Event()
    tasks.start(follow(client, heard, following), "events")
    await following.wait()
    try:
        async with client.chat(request(model)) as stream:
            async for event in stream:
                if not isinstance(event, TextDelta) or not event.text:
                    continue
                heard.times.append(time.perf_counter())
                heard.text += event.text
                if len(heard.times) == KILL_AT:
                    route = (await client.calls()).calls[0].attempts[-1].hops
                    victim = names[route[position].node_id]
                    killed_at, killed_wall = time.perf_counter(), time.time()
                    mesh.daemons[victim].process.kill()
        async with asyncio.timeout(EVENT_S):
            await heard.told.wait()
    finally:
        await tasks.close()
    if names[heard.culprit] != victim:
        print(f"{victim} was killed, but {names[heard.culprit]} was blamed ({heard.code})", file=sys.stderr)
    return kill_of(heard, killed_at, killed_wall, POSITIONS[position], heard.text == expected)


def kill_of(heard: Heard, killed_at: float, killed_wall: float, position: str, same_text: bool) -> Kill:
    assert heard.culprit_at is not None
    gaps = [after - before for before, after in pairwise(heard.times)]
    usual = statistics.median(gaps[: KILL_AT - 1])
    seam = max(after - max(before, killed_at) for before, after in pairwise(heard.times))
    return Kill(
        position,
        (heard.culprit_at - killed_wall) * 1000,
        (seam - usual) * 1000,
        usual * 1000,
        same_text,
        heard.code,
    )


async def measure(mesh: BenchMesh, client: TrackerClient, args: argparse.Namespace) -> list[Kill]:
    shards = thirds(args.layers)
    names = {f"{POSITIONS[at]}-{copy}": str(shard) for at, shard in enumerate(shards) for copy in (1, 2)}
    for name, shard in names.items():
        mesh.start_node(name, args.model, shard)
    mesh.wait_ready(list(names))
    expected = (await client.ask(request(args.model))).text
    kills: list[Kill] = []
    for number in range(args.runs):
        kill = await one_run(mesh, client, args.model, number % len(POSITIONS), expected)
        kills.append(kill)
        print(
            f"{number + 1:>3}  {kill.position:<7} {kill.code:<12} detected {kill.detect_ms:6.1f} ms  "
            f"pause {kill.pause_ms:6.1f} ms  (gap {kill.gap_ms:.1f} ms)  {'same' if kill.same_text else 'OTHER'} text",
            file=sys.stderr,
        )
        dead = [name for name in names if mesh.daemons[name].process.poll() is not None]
        for name in dead:
            mesh.start_node(name, args.model, names[name])
        mesh.wait_back(dead)
    return kills


async def run(args: argparse.Namespace) -> list[Kill]:
    with bench_mesh(args.threads) as mesh:
        url = mesh.start_tracker()
        async with open_http() as http:
            return await measure(mesh, TrackerClient(http, url), args)


def report(kills: Sequence[Kill]) -> dict[str, Any]:
    by_position = {
        position: {
            "detect_ms": round(statistics.median(k.detect_ms for k in kills if k.position == position), 1),
            "pause_ms": round(statistics.median(k.pause_ms for k in kills if k.position == position), 1),
        }
        for position in POSITIONS
        if any(k.position == position for k in kills)
    }
    return {
        "detect_ms": round(statistics.median(kill.detect_ms for kill in kills), 1),
        "pause_ms": round(statistics.median(kill.pause_ms for kill in kills), 1),
        "gap_ms": round(statistics.median(kill.gap_ms for kill in kills), 1),
        "runs": len(kills),
        "same_text": sum(kill.same_text for kill in kills),
        "by_position": by_position,
        "machine": machine(),
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench failover", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=30, help="of the model")
    parser.add_argument("--threads", type=int, default=1, help="of each node")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    kills = asyncio.run(run(args))
    figures = report(kills)
    if args.json:
        print(json.dumps(figures))
    else:
        print(f"detected after {spread([k.detect_ms for k in kills])} ms (median, min-max)")
        print(f"pause beyond the usual gap {spread([k.pause_ms for k in kills])} ms")
        print(f"{figures['same_text']} of {figures['runs']} texts equal the unbroken run's")
    return 0 if figures["same_text"] == figures["runs"] else 1
