"""``meshnet bench tracker``: what the tracker itself costs, with heads that answer at once.

Processes: a tracker, nodes that cost nothing, and this client, which asks at a fixed rate whether or not answers have
come. ``added_ms`` is the time of a whole answer through the tracker less that of the same question answered by the
nodes' process directly, ``cpu_ms_per_request`` the tracker's CPU time less what heartbeats take. The figures of
choosing and enumerating are CPU time of the policies alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import psutil

from meshnet.bench._instant_head import MODEL, PLAIN
from meshnet.bench.processes import bench_mesh
from meshnet.bench.report import machine
from meshnet.bench.simulation_speed import speeds
from meshnet.wire import api

HEADS, TAILS = 10, 20
"""Their products are the arms of the table measured."""
TABLE_READS = 50
WARM_S = 1.0

Ask = Callable[[], Awaitable[None]]


async def at_rate(ask: Ask, rate: float, seconds: float) -> list[float]:
    """``rate`` questions a second, begun on time however long the ones before take. Their seconds, sorted; those of the
    first WARM_S are left out."""
    began = time.perf_counter()
    spent: list[float] = []

    async def one(at_s: float) -> None:
        await asyncio.sleep(max(0.0, began + at_s - time.perf_counter()))
        started = time.perf_counter()
        await ask()
        if at_s >= WARM_S:
            spent.append(time.perf_counter() - started)

    await asyncio.gather(*(one(number / rate) for number in range(int(rate * (seconds + WARM_S)))))
    return sorted(spent)


def quantiles_ms(spent: Sequence[float]) -> dict[str, float]:
    ordered = sorted(spent)
    return {
        name: round(1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


class Bench:
    """One tracker with its free nodes, asked over one pool of connections."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        tracker: str,
        plain: str,
        args: argparse.Namespace,
        cpu_s: Callable[[], float],
    ) -> None:
        """``cpu_s`` says what the tracker's process has used so far."""
        self._http, self._tracker, self._plain, self._args, self._cpu_s = http, tracker, plain, args, cpu_s

    async def run(self) -> dict[str, Any]:
        await self.teach()
        rate, seconds = self._args.rate, self._args.seconds
        idle_cpu_s = -self._cpu_s()
        direct = await at_rate(self._ask_plain, rate, seconds)
        idle_cpu_s += self._cpu_s()
        before, busy_cpu_s = await self._decisions(), -self._cpu_s()
        through = await at_rate(self._ask, rate, seconds)
        busy_cpu_s += self._cpu_s()
        after = await self._decisions()
        direct_ms, through_ms = quantiles_ms(direct), quantiles_ms(through)
        return {
            "requests": len(through),
            "direct_ms": direct_ms,
            "through_ms": through_ms,
            "added_ms": {name: round(through_ms[name] - direct_ms[name], 3) for name in through_ms},
            "cpu_ms_per_request": round(1e3 * (busy_cpu_s - idle_cpu_s) / (rate * (seconds + WARM_S)), 3),
            "decision_ms_mean": round(1e3 * (after[0] - before[0]) / (after[1] - before[1]), 4),
            "table_ms": quantiles_ms(await self.read_table()),
            "arms": await self.arms(),
        }

    async def _decisions(self) -> tuple[float, float]:
        """Seconds the tracker spent choosing routes so far, candidates included, and how many it chose."""
        async with self._http.get(self._tracker + api.METRICS) as answer:
            lines = (await answer.text()).splitlines()
        name = "meshnet_route_decision_seconds_"
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(name))
        return float(found[name + "sum"]), float(found[name + "count"])

    async def teach(self) -> None:
        """One answer over every pair of head and tail, so that the table has its arms."""
        nodes = (await self._get(api.NODES))["nodes"]
        half = nodes[0]["n_layers"] // 2
        heads = [node["node_id"] for node in nodes if node["shard_start"] == 0]
        tails = [node["node_id"] for node in nodes if node["shard_start"] == half and node["shard_end"] == 2 * half - 1]
        for head in heads:
            for tail in tails:
                await self._ask([head, tail])

    async def read_table(self) -> list[float]:
        spent: list[float] = []
        for _ in range(TABLE_READS):
            started = time.perf_counter()
            async with self._http.get(self._tracker + api.ROUTING) as answer:
                await answer.read()
            spent.append(time.perf_counter() - started)
        return spent

    async def arms(self) -> int:
        return len((await self._get(api.ROUTING))["models"][0]["candidates"])

    async def _ask(self, route: Sequence[str] = ()) -> None:
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "seed": 1}
        if route:
            body["route"] = list(route)
        elif self._args.policy:
            body["route_policy"] = self._args.policy
        await self._post(self._tracker + api.CHAT, body)

    async def _ask_plain(self) -> None:
        await self._post(self._plain + PLAIN, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})

    async def _post(self, url: str, body: dict[str, Any]) -> None:
        async with self._http.post(url, json=body) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise SystemExit(f"{url} answered {answer.status}: {text}")

    async def _get(self, path: str) -> Any:
        async with self._http.get(self._tracker + path) as answer:
            return await answer.json()


async def live(args: argparse.Namespace, tracker: str, cpu_s: Callable[[], float]) -> dict[str, Any]:
    """Figures of one tracker process at this many nodes."""
    words = [HEADS, TAILS, max(args.nodes - HEADS - TAILS, 0), args.tokens]
    command = [sys.executable, "-m", "meshnet.bench._instant_head", tracker, *map(str, words)]
    free = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert free.stdout is not None
        plain = (await free.stdout.readline()).decode().strip()
        if not plain:
            raise SystemExit("the free nodes ended; see their error above")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            return await Bench(http, tracker, plain, args, cpu_s).run()
    finally:
        free.kill()
        await free.communicate()


def run(args: argparse.Namespace) -> dict[str, Any]:
    with bench_mesh(threads=1) as mesh:
        url = mesh.start_tracker("--log-level", "WARNING")
        process = psutil.Process(mesh.daemons["tracker"].process.pid)
        figures = asyncio.run(live(args, url, lambda: sum(process.cpu_times()[:2])))
    return {
        "machine": machine(),
        "nodes": args.nodes,
        "rate": args.rate,
        "tokens": args.tokens,
        "policy": args.policy or "adr",
        "live": figures,
        "decisions": speeds(args.repeats),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as lines of text, the bars beside them."""
    found = figures["live"]
    lines = [
        f"{figures['nodes']} nodes, {figures['rate']:g} requests/s of {figures['tokens']} tokens, {figures['policy']}",
        f"  {'':24}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}",
    ]
    for name in ("direct_ms", "through_ms", "added_ms", "table_ms"):
        values = found[name]
        bar = {"added_ms": "p50 <= 3", "table_ms": f"p99 <= 20, {found['arms']} arms"}.get(name, "")
        lines.append(f"  {name:24}" + "".join(f"{values[q]:9.2f}" for q in ("p50", "p95", "p99")) + f"  {bar}")
    for name in ("cpu_ms_per_request", "decision_ms_mean"):
        lines.append(f"  {name:24}{found[name]:9.3f}")
    lines += [
        f"  {row['measure']:32} p50 {row['p50_us']:>9} µs  p99 {row['p99_us']:>9} µs" for row in figures["decisions"]
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench tracker", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="live nodes, 30 at least (default: 200)")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second (default: 100)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    parser.add_argument("--tokens", type=int, default=16, help="per answer (default: 16)")
    parser.add_argument("--policy", default="", help="ask for this policy (default: the tracker's)")
    parser.add_argument("--repeats", type=int, default=50, help="of each decision timed (default: 50)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    figures = run(args)
    print(json.dumps(figures, indent=2) if args.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
