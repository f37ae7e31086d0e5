"""``meshnet bench chat``: a mesh against transformers' ``generate`` on the same weights, dtype and threads.

Four figures, all from alternating rounds of one run: one-node route ÷ generate, three-node route ÷ one-node route,
time per hop and token that is not compute, and the total tokens/s of eight streams ÷ that of one. Every process, the
baseline included, uses ``--threads``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from meshnet.bench.processes import BenchMesh, bench_mesh, require_model
from meshnet.bench.report import Spread, machine, ratios, spread
from meshnet.bench.ring import HopCosts, measure_ring
from meshnet.weights.places import store_root
from meshnet.weights.store import Store
from meshnet.wire import api

PROMPT = "Write a long story about a lighthouse keeper who learns to listen to the sea."
STREAMS = 8


@dataclass(slots=True)
class Rounds:
    """What each round measured; rates in tokens/s."""

    generate: list[float] = field(default_factory=list)
    one_node: list[float] = field(default_factory=list)
    three_nodes: list[float] = field(default_factory=list)
    one_stream: list[float] = field(default_factory=list)
    eight_streams: list[float] = field(default_factory=list)
    three_one_stream: list[float] = field(default_factory=list)
    three_eight_streams: list[float] = field(default_factory=list)


class Baseline:
    """The baseline's process, asked by lines."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "meshnet.bench.baseline", model, dtype, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            text=True,
        )
        self._read()

    def run(self, max_tokens: int) -> float:
        """Decode tokens/s of one generation."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": PROMPT, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["decode_tps"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the baseline process ended; see its error above")
        return json.loads(line)


async def stream_tps(http: httpx.AsyncClient, url: str, model: str, route: Sequence[str], n: int) -> tuple[float, int]:
    """Decode tokens/s as a client sees them, and the tokens of one streamed answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "max_tokens": n,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "route": list(route),
    }
    first = last = 0.0
    tokens = 0
    async with http.stream("POST", url + api.CHAT, json=body) as answer:
        if answer.status_code != 200:
            raise SystemExit((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise SystemExit(f"the stream failed: {chunk['error']['message']}")
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return (tokens - 1) / (last - first), tokens


async def total_tps(http: httpx.AsyncClient, url: str, model: str, route: Sequence[str], n: int, streams: int) -> float:
    """Tokens/s of all streams together, prompt included: wall time from the first request to the last token."""
    started = time.perf_counter()
    done = await asyncio.gather(*(stream_tps(http, url, model, route, n) for _ in range(streams)))
    return sum(tokens for _, tokens in done) / (time.perf_counter() - started)


async def _rounds(mesh: BenchMesh, baseline: Baseline, model: str, args: argparse.Namespace) -> tuple[Rounds, HopCosts]:
    last = Store(store_root(os.environ)).open(model).manifest.n_layers - 1
    a, b = last // 3, 2 * last // 3
    shards = {"whole": f"0-{last}", "a": f"0-{a}", "b": f"{a + 1}-{b}", "c": f"{b + 1}-{last}"}
    for name, shard in shards.items():
        mesh.start_node(name, model, shard)
        mesh.wait_ready([name])
    nodes = mesh.wait_ready(list(shards))
    one, three = [nodes["whole"].node_id], [nodes[n].node_id for n in "abc"]
    rounds, url, n = Rounds(), mesh.tracker_url, args.tokens
    async with httpx.AsyncClient(trust_env=False, timeout=600) as http:
        for warm in (one, three):
            await stream_tps(http, url, model, warm, 8)
        baseline.run(8)
        for number in range(args.runs):
            _say(args, f"round {number + 1} of {args.runs}")
            rounds.generate.append(baseline.run(n))
            rounds.one_node.append((await stream_tps(http, url, model, one, n))[0])
            rounds.three_nodes.append((await stream_tps(http, url, model, three, n))[0])
            rounds.one_stream.append(await total_tps(http, url, model, one, n, 1))
            rounds.eight_streams.append(await total_tps(http, url, model, one, n, STREAMS))
            rounds.three_one_stream.append(await total_tps(http, url, model, three, n, 1))
            rounds.three_eight_streams.append(await total_tps(http, url, model, three, n, STREAMS))
    return rounds, await measure_ring([nodes[name] for name in "abc"], PROMPT, n)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One thread count's figures."""
    require_model(args.model)
    with bench_mesh(args.threads) as mesh:
        mesh.start_tracker()
        baseline = Baseline(args.model, "float32", args.threads)
        try:
            rounds, hops = asyncio.run(_rounds(mesh, baseline, args.model, args))
        finally:
            baseline.close()
    figures: dict[str, Spread] = {
        "one_node_vs_generate": ratios(rounds.one_node, rounds.generate),
        "three_nodes_vs_one_node": ratios(rounds.three_nodes, rounds.one_node),
        "eight_streams_vs_one": ratios(rounds.eight_streams, rounds.one_stream),
        "three_nodes_eight_streams_vs_one": ratios(rounds.three_eight_streams, rounds.three_one_stream),
    }
    rates = {name: spread(values) for name, values in asdict(rounds).items()}
    return {
        "machine": machine(),
        "model": args.model,
        "threads": args.threads,
        "runs": args.runs,
        "tokens": args.tokens,
        "ratios": {name: asdict(value) for name, value in figures.items()},
        "tokens_per_s": {name: asdict(value) for name, value in rates.items()},
        "hop_overhead_ms": asdict(hops),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench chat", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="a pulled model (default: smollm2-135m)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of EVERY process (default: 1)")
    parser.add_argument("--runs", type=int, default=5, help="alternating rounds (default: 5)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer (default: 64)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    figures = run(args)
    print(json.dumps(figures, indent=2) if args.json else table(figures))
    return 0


def table(figures: dict[str, Any]) -> str:
    """The figures as lines of text, the bar beside each."""
    bars = {
        "one_node_vs_generate": ">= 1.00",
        "three_nodes_vs_one_node": ">= 0.90",
        "eight_streams_vs_one": ">= 2.50",
        "three_nodes_eight_streams_vs_one": "",
    }
    lines = [
        f"{figures['model']}, {figures['threads']} thread(s) a process, {figures['runs']} rounds: median (low-high)"
    ]
    lines += [f"  {name:36} {Spread(**value)!s:24} {bars[name]}" for name, value in figures["ratios"].items()]
    lines += [f"  {name + ' tok/s':36} {Spread(**value)}" for name, value in figures["tokens_per_s"].items()]
    hops = figures["hop_overhead_ms"]
    lines.append(f"  {'hop overhead ms p50':36} {hops['per_hop_p50']:.3f} (p95 {hops['per_hop_p95']:.3f})   <= 1.0")
    lines += [f"    {part:34} {value:.3f}" for part, value in hops["breakdown"].items()]
    return "\n".join(lines)


def _say(args: argparse.Namespace, text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
