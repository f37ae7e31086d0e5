"""``meshnet bench learning``: does a real mesh learn what its routes are worth, and does traffic follow?

Three nodes with overlapping shards, of which one is slowed to a quarter of its speed (``--delay-per-layer-ms``, sized
by a first measurement). Between the chats every route is timed straight at its head, past the tracker, with the same
prompt and length: what the tracker learned must agree. Then the slow node changes places with a fast one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshnet.bench.processes import BenchMesh, bench_mesh
from meshnet.bench.report import machine
from meshnet.bench.ring import ring_tps
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.routes import parse_signature
from meshnet.wire.messages import NodeMessage
from meshnet.wire.routing import CandidateMessage

PROMPT = "Write a story about a lighthouse keeper."
SLOWDOWN = 4.0
WARM_TOKENS = 32
TIMED_EVERY = {"adr": 3, "hop": 10}
"""Chats between two rounds of timings. Coefficients are compared, so both sides must see the machine drift alike; for
hop the timings only say which of its more numerous routes is the best."""
AS_GOOD = 0.95
"""A route within 5 % of the fastest is as good as the best: timings do not tell them apart."""


@dataclass(slots=True)
class Phase:
    """One run of chats: the route of each, and what each route was timed at meanwhile, tokens/s."""

    taken: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    timed: dict[str, list[float]] = field(default_factory=dict)

    def speeds(self) -> dict[str, float]:
        """Means, as what a tracker learns is one."""
        return {signature: statistics.fmean(found) for signature, found in self.timed.items()}

    def best(self) -> set[str]:
        speeds = self.speeds()
        return {signature for signature, tps in speeds.items() if tps >= AS_GOOD * max(speeds.values())}

    def best_share(self, last: int) -> float:
        taken, best = self.taken[-last:], self.best()
        return sum(signature in best for signature in taken) / len(taken)


class Trial:
    """Chats with one mesh by one policy."""

    def __init__(self, mesh: BenchMesh, client: TrackerClient, args: argparse.Namespace, policy: str) -> None:
        self._mesh, self._client, self._args, self._policy = mesh, client, args, policy

    async def chat(self, phase: Phase, chats: int) -> None:
        """``chats`` questions one after the other, timings between them."""
        for number in range(chats):
            answer = await self._client.ask(
                {
                    "model": self._args.model,
                    "messages": [{"role": "user", "content": PROMPT}],
                    "temperature": 0,
                    "max_tokens": self._args.tokens,
                    "ignore_eos": True,
                    "route_policy": self._policy,
                }
            )
            phase.taken.append(str(answer.meshnet["route"]))
            phase.modes.append(str(answer.meshnet["mode"]))
            if (number + 1) % min(TIMED_EVERY[self._policy], chats) == 0:
                await self._time(phase)

    async def _time(self, phase: Phase) -> None:
        nodes = {node.node_id: node for node in self._mesh.nodes()}
        for signature in sorted({row.signature for row in await self.table()} | set(phase.taken)):
            hops = parse_signature(signature)[1]
            if all(node_id in nodes for node_id, _, _ in hops):
                route, ends = [nodes[node_id] for node_id, _, _ in hops], [end for _, _, end in hops]
                tps = await ring_tps(route, PROMPT, self._args.tokens, ends)
                phase.timed.setdefault(signature, []).append(tps)

    def short(self, signature: str) -> str:
        """``n1[0-14] -> n2[15-29]``."""
        names = {node.node_id: node.name for node in self._mesh.nodes()}
        hops = parse_signature(signature)[1]
        return " -> ".join(f"{names.get(node_id, node_id)}[{start}-{end}]" for node_id, start, end in hops)

    async def table(self) -> tuple[CandidateMessage, ...]:
        return (await self._client.routing(self._args.model)).models[0].candidates


async def slow_delay_ms(node: NodeMessage, layers: int) -> float:
    """Per layer, so that a token takes SLOWDOWN times as long."""
    await ring_tps([node], PROMPT, WARM_TOKENS)
    tps = statistics.median([await ring_tps([node], PROMPT, WARM_TOKENS) for _ in range(3)])
    return (SLOWDOWN - 1.0) * 1000.0 / tps / layers


async def run_adr(mesh: BenchMesh, client: TrackerClient, args: argparse.Namespace) -> dict[str, Any]:
    """Coefficients against timings, and the exploit share against tokens/s."""
    trial, phase = Trial(mesh, client, args, "adr"), Phase()
    await trial.chat(phase, args.chats)
    rows = {row.signature: row for row in await trial.table()}
    speeds = phase.speeds()
    compared = [signature for signature, row in rows.items() if row.learned_tps is not None and signature in speeds]
    top_learned = max(rows[s].learned_tps or 0.0 for s in compared)
    top_timed = max(speeds[s] for s in compared)
    exploits = Counter(s for s, mode in zip(phase.taken, phase.modes, strict=True) if mode == "exploit")
    return {
        "chats": args.chats,
        "modes": dict(Counter(phase.modes)),
        "routes": [
            {
                "route": trial.short(signature),
                "timed_tps": round(speeds[signature], 2),
                "timed_coefficient": round(speeds[signature] / top_timed, 3),
                "learned_tps": round(rows[signature].learned_tps or 0.0, 2),
                "coefficient": round((rows[signature].learned_tps or 0.0) / top_learned, 3),
                "samples": rows[signature].samples,
                "exploit_share": round(exploits[signature] / max(exploits.total(), 1), 3),
                "share_by_tps": round(speeds[signature] / sum(speeds[s] for s in compared), 3),
            }
            for signature in compared
        ],
    }


async def run_hop(mesh: BenchMesh, client: TrackerClient, args: argparse.Namespace, delay_ms: float) -> dict[str, Any]:
    """The share of requests on a best route: settled, and after the slow node changed places with a fast one."""
    trial, before, after = Trial(mesh, client, args, "hop"), Phase(), Phase()
    await trial.chat(before, args.chats)
    say("the slow node and a fast one change places")
    set_speeds(mesh, args, {"n2": delay_ms, "n3": 0.0})
    await trial.chat(after, args.chats // 2)
    return {
        "chats": args.chats,
        "best": sorted(map(trial.short, before.best())),
        "timed_tps": {trial.short(s): round(tps, 2) for s, tps in before.speeds().items()},
        "best_share_of_last_30": round(before.best_share(30), 3),
        "after_swap_best": sorted(map(trial.short, after.best())),
        "after_swap_timed_tps": {trial.short(s): round(tps, 2) for s, tps in after.speeds().items()},
        "after_swap_taken": [trial.short(signature) for signature in after.taken],
        "after_swap_best_share_of_30": round(after.best_share(args.chats // 2), 3),
    }


def set_speeds(mesh: BenchMesh, args: argparse.Namespace, delays_ms: Mapping[str, float]) -> dict[str, NodeMessage]:
    """Start these nodes with these delays a layer, again if they run: n1 and n2 hold a half each, n3 the whole."""
    last = args.layers - 1
    shards = {"n1": f"0-{last // 2}", "n2": f"{last // 2 + 1}-{last}", "n3": f"0-{last}"}
    for name, delay_ms in delays_ms.items():
        if name in mesh.daemons:
            mesh.daemons[name].stop()
        flags = ["--delay-per-layer-ms", f"{delay_ms:.3f}"] if delay_ms else []
        mesh.start_node(name, args.model, shards[name], *flags)
        mesh.wait_ready([name])  # One after the other: each measures itself while it starts.
    return mesh.wait_ready(list(delays_ms))


async def run(args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"machine": machine(), "model": args.model, "tokens": args.tokens}
    async with open_http() as http:
        for policy in args.policy:
            say(f"a fresh mesh for {policy}")
            with bench_mesh(args.threads) as mesh:
                client = TrackerClient(http, mesh.start_tracker("--route-policy", policy))
                whole = set_speeds(mesh, args, {"n3": 0.0})["n3"]
                delay_ms = await slow_delay_ms(whole, args.layers)
                set_speeds(mesh, args, {"n1": 0.0, "n2": 0.0, "n3": delay_ms})
                figures["delay_per_layer_ms"] = round(delay_ms, 3)
                if policy == "adr":
                    figures[policy] = await run_adr(mesh, client, args)
                else:
                    figures[policy] = await run_hop(mesh, client, args, delay_ms)
                say(json.dumps(figures[policy]))
    return figures


def table(figures: dict[str, Any]) -> str:
    return "\n".join([*_adr_lines(figures), *_hop_lines(figures)])


def _adr_lines(figures: dict[str, Any]) -> list[str]:
    if (adr := figures.get("adr")) is None:
        return []
    lines = [f"{figures['model']}, {figures['tokens']} tokens, {adr['chats']} chats by adr: {adr['modes']}"]
    for row in adr["routes"]:
        off = row["coefficient"] / row["timed_coefficient"] - 1.0
        lines.append(
            f"  {row['route']:32} coefficient {row['coefficient']:.2f} (timed {row['timed_coefficient']:.2f}, "
            f"{off:+.0%}; bar 25 %)  exploit share {row['exploit_share']:.2f} (by tokens/s {row['share_by_tps']:.2f})"
        )
    return lines


def _hop_lines(figures: dict[str, Any]) -> list[str]:
    if (hop := figures.get("hop")) is None:
        return []
    return [
        f"hop: {hop['best_share_of_last_30']:.0%} of the last 30 on the best route (bar 80 %)",
        f"  after the swap: {hop['after_swap_best_share_of_30']:.0%} of the next 30 on the new best (bar 50 %)",
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="meshnet bench learning", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="a pulled model (default: smollm2-135m)")
    parser.add_argument("--layers", type=int, default=30, help="of the model (default: 30)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of every node (default: 1)")
    parser.add_argument("--policy", nargs="+", choices=("adr", "hop"), default=("adr", "hop"), help="default: both")
    parser.add_argument("--chats", type=int, default=60, help="of each policy (default: 60)")
    parser.add_argument("--tokens", type=int, default=20, help="per answer (default: 20)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    figures = asyncio.run(run(args))
    print(json.dumps(figures, indent=2) if args.json else table(figures))
    return 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
