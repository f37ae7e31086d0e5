"""Meshes as values: the snapshots that the console's tests and pictures are made from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec import structs

from meshnet.domain.errors import MeshnetError, NotFound
from meshnet.wire.demand import ModelStats, PeerStats, StatsResponse
from meshnet.wire.messages import (
    AcceleratorMessage,
    CoverageLayer,
    CoverageModel,
    HardwareMessage,
    ModelMessage,
    NodeMessage,
)
from meshnet.wire.routing import (
    AttemptMessage,
    CallMessage,
    CandidateMessage,
    DecisionMessage,
    EventMessage,
    ExplainResponse,
    RouteHop,
    RouteMode,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
)
from meshnet.wire.status import Snapshot, TrackerMessage
from tui.source import ChatAsk, ChatEnded, ChatPiece, ChatStarted, ChatText

NOON = 1_900_000_800.0
"""Unix seconds of every canned snapshot: a fixed moment."""
GIB = 1 << 30
MODEL = "m-7b"
LAYERS = 32

MACHINES = (
    ("a100-1", 0, 31, "AMD EPYC 7543", 32, 256, "NVIDIA A100", 80, 46.0, 44.0),
    ("4090-1", 0, 15, "AMD Ryzen 9 7950X", 16, 64, "NVIDIA RTX 4090", 24, 61.0, 58.3),
    ("4090-2", 16, 31, "AMD Ryzen 9 7950X", 16, 64, "NVIDIA RTX 4090", 24, 60.0, 57.1),
    ("3090-1", 16, 31, "Intel i9-10900K", 10, 64, "NVIDIA RTX 3090", 24, 48.0, 30.2),
    ("m2-1", 16, 23, "Apple M2 Max", 12, 32, "Apple M2 Max GPU", 32, 14.0, 0.0),
    ("t4-1", 24, 31, "Intel Xeon 2.2", 4, 16, "NVIDIA T4", 16, 12.0, 0.0),
)


def node_id(name: str, start: int, end: int) -> str:
    wallet = name.replace("-", "x").ljust(20, "q")
    return f"{wallet}.{start}-{end}"


def node(
    name: str, start: int, end: int, cpu: str = "cpu", cores: int = 8, ram: int = 32, gpu: str = "", vram: int = 0,
    benchmark: float = 20.0, observed: float = 0.0, **more: object,
) -> NodeMessage:  # fmt: skip
    accelerators = (AcceleratorMessage(gpu, "cuda", vram * GIB),) if gpu else ()
    fields: dict[str, object] = {
        "node_id": node_id(name, start, end), "wallet": node_id(name, start, end).partition(".")[0], "name": name,
        "url": f"http://10.0.0.{start + 1}:7071", "model_key": MODEL, "revision": "9f2c1a77", "n_layers": LAYERS,
        "shard_start": start, "shard_end": end, "dtype": "bfloat16", "context_length": 8192, "epoch": 3,
        "state": "ready", "live": True, "suspect": False, "heartbeat_age_s": 2.0, "joined_age_s": 259_200.0,
        "benchmark_tokens_per_sec": benchmark, "observed_tokens_per_sec": observed, "benchmark_spread": 0.8,
        "prefill_tokens_per_sec": benchmark * 30, "reputation": 0.97, "queue_depth": 1 if observed else 0,
        "in_flight": 2 if observed else 0, "kv_budget_bytes": 4 * GIB, "kv_free_bytes": 3 * GIB,
        "memory_budget_bytes": (vram or ram) * GIB, "weights_bytes": (end - start + 1) * GIB // 2, "rss_bytes": 6 * GIB,
        "hardware": HardwareMessage(cpu, cores, cores * 2, ram * GIB, ram * GIB // 2, 0, 200 * GIB, "Linux 6.1",
                                    "3.11", accelerators),
    }  # fmt: skip
    return NodeMessage(**(fields | more))  # type: ignore[arg-type]


def mesh_nodes() -> tuple[NodeMessage, ...]:
    rows = [node(*machine) for machine in MACHINES]
    rows[3] = node(*MACHINES[3], queue_depth=3, in_flight=4)
    rows[4] = node(
        *MACHINES[4],
        suspect=True,
        heartbeat_age_s=12.0,
        reputation=0.71,
        url=f"relay://gw1:7090/{node_id('m2-1', 16, 23).partition('.')[0]}",
    )
    rows[5] = node(
        *MACHINES[5], state="loading", loading_done_bytes=5 * GIB, loading_total_bytes=8 * GIB, joined_age_s=70.0
    )
    return tuple(rows)


def hop(name: str, start: int, end: int, shard: tuple[int, int] | None = None, us: float | None = None) -> RouteHop:
    low, high = shard or (start, end)
    return RouteHop(
        node_id=node_id(name, low, high), name=name, start_layer=start, end_layer=end,
        queued_us=None if us is None else us / 40, computing_us=us, load=1,
    )  # fmt: skip


def signature(hops: Sequence[RouteHop], model: str = MODEL) -> str:
    return f"{model} | " + " -> ".join(f"{h.node_id}[{h.start_layer}-{h.end_layer}]" for h in hops)


A = hop("a100-1", 0, 31, us=21_000)
A_HEAD = hop("a100-1", 0, 15, (0, 31), us=8_900)
A_TAIL = hop("a100-1", 16, 31, (0, 31), us=9_800)
B1 = hop("4090-1", 0, 15, us=11_000)
B2 = hop("4090-2", 16, 31, us=12_100)
C = hop("3090-1", 16, 31, us=18_700)
M = structs.replace(hop("m2-1", 16, 23, us=61_000), relayed=True)
A_END = hop("a100-1", 24, 31, (0, 31), us=5_000)
B2_END = hop("4090-2", 24, 31, (16, 31))


def candidate(hops: tuple[RouteHop, ...], status: str, tps: float | None, **more: object) -> CandidateMessage:
    fields: dict[str, object] = {
        "signature": signature(hops), "hops": hops, "status": status, "prior_tps": 25.0, "learned_tps": tps,
        "predicted_tps": tps or 25.0,
    }  # fmt: skip
    return CandidateMessage(**(fields | more))  # type: ignore[arg-type]


def mesh_routes() -> tuple[CandidateMessage, ...]:
    def learned(tps: float, spread: float, n: int, share: float, age: float) -> dict[str, object]:
        return {
            "spread_tps": spread, "samples": n, "coefficient": tps / 44.1, "expected_share": share,
            "actual_share": share, "weight": n / 10, "age_s": age, "stale_in_s": 291.0,
            "ttft_s_per_prompt_token": 0.0021, "decode_s_per_token": 1 / tps,
        }  # fmt: skip

    return (
        candidate((A,), "proven", 44.1, **learned(44.1, 0.9, 240, 0.55, 2)),
        candidate((A_HEAD, B2), "proven", 38.4, **learned(38.4, 1.2, 212, 0.20, 5)),
        candidate((A_HEAD, C), "proven", 31.9, **learned(31.9, 2.0, 88, 0.12, 9)),
        candidate((B1, B2), "proven", 29.7, **learned(29.7, 4.8, 14, 0.09, 31)),
        candidate(
            (B1, C), "stale", 22.0,
            **(learned(22.0, 3.1, 41, 0.02, 432) | {"actual_share": 0.01, "weight": 0.36, "stale_in_s": 0.0}),
        ),
        candidate(
            (B1, M, A_END), "decayed", 9.1,
            **(learned(9.1, 2.2, 17, 0.01, 1860) | {"actual_share": 0.0, "weight": 0.04, "stale_in_s": None}),
        ),
        candidate((A_HEAD, M, B2_END), "unsampled", None, expected_share=0.03, next_scout=True),
        candidate((B1, A_TAIL), "unsampled", None, expected_share=0.0, current=False),
    )  # fmt: skip


def coverage(nodes: Sequence[NodeMessage], model: str = MODEL, n_layers: int = LAYERS) -> CoverageModel:
    held = [
        tuple(n.node_id for n in nodes if n.state == "ready" and n.shard_start <= i <= n.shard_end)
        for i in range(n_layers)
    ]

    def ranges(depth: int) -> tuple[str, ...]:
        found: list[list[int]] = []
        for i, ids in enumerate(held):
            if len(ids) == depth:
                if found and found[-1][1] == i - 1:
                    found[-1][1] = i
                else:
                    found.append([i, i])
        return tuple(f"{a}-{b}" for a, b in found)

    return CoverageModel(
        model_key=model, n_layers=n_layers, depths=tuple(map(len, held)), gaps=ranges(0), single=ranges(1),
        coverage_deficit=sum(not ids for ids in held) / n_layers,
        layers=tuple(CoverageLayer(i, ids) for i, ids in enumerate(held)),
    )  # fmt: skip


def call(seq: int, mode: RouteMode, hops: tuple[RouteHop, ...], outcome: str = "ok", **more: object) -> CallMessage:
    decision = DecisionMessage(
        mode=mode, signature=signature(hops), policy="thompson",
        why=f"{mode}: expected 44.1 tok/s, best of 7 candidates", probability=0.55,
    )  # fmt: skip
    attempts = (AttemptMessage(attempt=1, decision=decision, hops=hops, started_s=0.001, ended_s=4.6),)
    fields: dict[str, object] = {
        "seq": seq, "call_id": f"call-01j9z{seq:06d}", "model_key": MODEL, "accepted_at": NOON - (400 - seq) * 3.0,
        "outcome": outcome, "mode": mode, "signature": signature(hops), "attempts": attempts, "stream": True,
        "prompt_tokens": 12 + seq % 50, "completion_tokens": 148, "ttft_s": 0.214, "duration_s": 4.6, "tps": 31.9,
        "finish_reason": "stop" if outcome == "ok" else None,
    }  # fmt: skip
    return CallMessage(**(fields | more))  # type: ignore[arg-type]


def mesh_calls() -> tuple[CallMessage, ...]:
    rows = [
        call(400, "exploit", (A,), "running", completion_tokens=61, tps=43.0, ttft_s=0.188, duration_s=None),
        call(399, "scout", (A_HEAD, M, B2_END), ttft_s=0.912, tps=8.8, completion_tokens=57, prompt="haiku, please"),
        call(398, "pinned", (A_HEAD, C), prompt="explain paged attention in one sentence"),
        call(397, "exploit", (A_HEAD, B2), prompt_tokens=803, completion_tokens=311, ttft_s=1.4, tps=36.0,
             finish_reason="length", reroutes=1, prompt="translate: [INST] the quick [/INST]"),
        call(396, "exploit", (B1, B2), "failed", completion_tokens=0, ttft_s=None, tps=None, error_code="node_failed",
             error_message="hop 2 4090-2: connection reset"),
        call(395, "greedy-fallback", (A,), "cancelled", completion_tokens=9),
    ]  # fmt: skip
    rng = random.Random(7)
    modes: list[tuple[RouteMode, tuple[RouteHop, ...]]] = [
        ("exploit", (A,)), ("exploit", (A_HEAD, B2)), ("exploit", (A,)), ("scout", (B1, C)), ("pinned", (A_HEAD, C)),
    ]  # fmt: skip
    for seq in range(394, 280, -1):
        mode, hops = rng.choices(modes, (8, 6, 4, 1, 1))[0]
        rows.append(call(seq, mode, hops, tps=round(rng.uniform(24, 45), 1)))
    return tuple(rows)


def stats() -> StatsResponse:
    wave = tuple(int(20 + 18 * ((i * 7) % 11) / 10) for i in range(60))
    return StatsResponse(
        tracker_id="gw1-4f2a9c01", generation=3,
        models=(
            ModelStats(
                model_key=MODEL, rpm_last_hour=41.0, rpm_last_day=18.2, rpm_last_month=11.7,
                combined_rpm_last_hour=52.0, combined_rpm_last_day=23.0, combined_rpm_last_month=14.1, minutes=wave,
            ),
            ModelStats(
                model_key="m-13b", rpm_last_hour=3.0, rpm_last_day=1.1, rpm_last_month=0.4,
                combined_rpm_last_hour=3.0, combined_rpm_last_day=1.1, combined_rpm_last_month=0.4,
                minutes=(0,) * 50 + (3, 5, 2, 0, 4, 6, 1, 0, 2, 3),
            ),
        ),
        peers=(PeerStats(url="http://gw2:7070", tracker_id="gw2-0011aa22", up=True, age_s=4.0),),
    )  # fmt: skip


CONFIG = RoutingConfigMessage(
    policy="thompson", explore_share=0.05, weight_alpha=2.0, stats_half_life_s=300.0, min_sample_tokens=8
)


def mesh() -> Snapshot:
    """Six machines, one 32-layer model that answers, one that nobody holds."""
    nodes = mesh_nodes()
    return Snapshot(
        taken_at=NOON,
        trackers=(TrackerMessage(url="http://gw1:7070", tracker_id="gw1-4f2a9c01", version="0.1.0", uptime_s=259_200),),
        nodes=nodes,
        models=(
            ModelMessage(id=MODEL, created=0, n_layers=32, context_length=8192, max_model_len=8192,
                         revisions=("9f2c1a77",), nodes=6, coverage_deficit=0.0, ready=True),
            ModelMessage(id="m-13b", created=0, n_layers=40, context_length=4096, max_model_len=4096),
        ),
        coverage=(coverage(nodes),),
        routing=RoutingResponse(
            config=CONFIG,
            models=(RoutingModel(model_key=MODEL, topology_epoch=14, candidates=mesh_routes(),
                                 left_out=((node_id("t4-1", 24, 31), "is loading"),)),),
        ),
        stats=stats(),
        calls=mesh_calls(),
    )  # fmt: skip


def mesh_events() -> tuple[EventMessage, ...]:
    """Newest first."""
    return (
        EventMessage(id=9, at=NOON - 12, kind="call.failed", problem=True, call_id="call-01j9z000396",
                     text="hop 2 4090-2: connection reset"),
        EventMessage(id=8, at=NOON - 15, kind="call.rerouted", problem=True, call_id="call-01j9z000397",
                     node_id=MACHINES[3][0], text="4090-2 stalled; going on over a100-1"),
        EventMessage(id=7, at=NOON - 61, kind="node.joined", node_id=node_id("t4-1", 24, 31), text="t4-1 joined"),
        EventMessage(id=6, at=NOON - 90, kind="node.suspect", problem=True, node_id=node_id("m2-1", 16, 23),
                     text="m2-1 missed 2 heartbeats"),
        EventMessage(id=5, at=NOON - 300, kind="call.finished", call_id="call-01j9z000390", text="31.9 tok/s"),
        EventMessage(id=4, at=NOON - 3600, kind="tracker.started", text="0.1.0 on gw1:7070"),
    )  # fmt: skip


def empty() -> Snapshot:
    return Snapshot(taken_at=NOON, trackers=(TrackerMessage(url="http://gw1:7070"),))


def one_node() -> Snapshot:
    rows = (node("solo", 0, 31, "Intel N100", 4, 16),)
    return Snapshot(
        taken_at=NOON, trackers=(TrackerMessage(url="http://gw1:7070"),), nodes=rows, coverage=(coverage(rows),),
        unserved=("calls", "routing", "stats"),
    )  # fmt: skip


def crowd(n_nodes: int = 60, n_routes: int = 400, seed: int = 3) -> Snapshot:
    """Many machines and routes."""
    rng = random.Random(seed)
    nodes = []
    for i in range(n_nodes):
        start = rng.choice((0, 0, 8, 16, 16, 24))
        end = min(31, start + rng.choice((7, 15, 15, 31)))
        nodes.append(node(f"box-{i:02d}", start, end, "AMD EPYC 7543", 32, 128, "NVIDIA L4", 24, rng.uniform(8, 60)))
    heads = [n for n in nodes if n.shard_start == 0]
    tails = [n for n in nodes if n.shard_end == 31 and n.shard_start > 0]
    routes = []
    for head in heads:
        for tail in tails:
            if head.shard_end + 1 >= tail.shard_start and len(routes) < n_routes:
                hops = (
                    hop(
                        head.name, 0, tail.shard_start - 1, (head.shard_start, head.shard_end), us=rng.uniform(5e3, 2e4)
                    ),
                    hop(tail.name, tail.shard_start, 31, us=rng.uniform(5e3, 2e4)),
                )
                tps = rng.uniform(5, 45)
                routes.append(
                    candidate(hops, "proven", tps, spread_tps=tps / 9, samples=rng.randrange(400), weight=3.0,
                              coefficient=tps / 45, expected_share=1 / n_routes, actual_share=1 / n_routes, age_s=70.0)
                )  # fmt: skip
    base = mesh()
    return Snapshot(
        taken_at=NOON, trackers=base.trackers, nodes=tuple(nodes), models=base.models, coverage=(coverage(nodes),),
        routing=RoutingResponse(
            config=CONFIG, models=(RoutingModel(model_key=MODEL, topology_epoch=99, candidates=tuple(routes)),)
        ),
        stats=stats(), calls=base.calls,
    )  # fmt: skip


class CannedSource:
    """A tracker that says what it is told. ``failure`` set, every poll raises it; chat speaks ``words``."""

    def __init__(self, snapshot: Snapshot, events: Sequence[EventMessage] | None = ()) -> None:
        self.url = "http://gw1:7070"
        self.now_shown = snapshot
        self.failure: MeshnetError | None = None
        self.polls = 0
        self.words: list[str] = ["Paged ", "attention ", "stores ", "KV ", "in ", "blocks."]
        self.chat_failure: MeshnetError | None = None
        self.asked: list[ChatAsk] = []
        self.explained: list[tuple[str, tuple[str, ...], str | None]] = []
        self.explain_failure: MeshnetError | None = None
        self.closed_chats = 0
        self.gate: asyncio.Event | None = None
        """Set on a chat that must wait: after the first word, until the event is set."""
        self.on_word: Callable[[ChatAsk, int], None] = lambda ask, index: None
        """Called before each word: what passes until it comes."""
        self.events_told = False
        """Whether every event has been heard."""
        self._events = events

    async def snapshot(self) -> Snapshot:
        self.polls += 1
        if self.failure:
            raise self.failure
        return self.now_shown

    async def events(self, after: int) -> AsyncGenerator[EventMessage, None]:
        if self._events is None:
            self.events_told = True
            raise NotFound("no events here")
        for event in sorted(self._events, key=lambda event: event.id):
            if event.id > after:
                yield event
        self.events_told = True
        await asyncio.Event().wait()

    async def explain(self, model: str, route: tuple[str, ...], policy: str | None) -> ExplainResponse:
        self.explained.append((model, route, policy))
        if self.explain_failure:
            raise self.explain_failure
        return ExplainResponse(
            model_key=model, topology_epoch=14, candidates=mesh_routes(),
            decision=DecisionMessage(mode="exploit", signature=signature((A,)), why="best expected: 44.1 tok/s",
                                     policy="thompson", probability=0.55),
        )  # fmt: skip

    async def chat(self, ask: ChatAsk) -> AsyncGenerator[ChatPiece, None]:
        self.asked.append(ask)
        try:
            mode: RouteMode = "pinned" if ask.route else "exploit"
            hops, call_id = (A_HEAD, C) if ask.route else (A,), f"call-chat-{len(self.asked)}"
            yield ChatStarted(call_id, mode, signature(hops))
            for i, word in enumerate(self.words):
                self.on_word(ask, i)
                yield ChatText(word)
                if i == 0 and self.gate is not None:
                    await self.gate.wait()
                await asyncio.sleep(0)
            if self.chat_failure:
                raise self.chat_failure
            ended = call(400 + len(self.asked), mode, hops, call_id=call_id, accepted_at=NOON)
            self.now_shown = structs.replace(self.now_shown, calls=(ended, *self.now_shown.calls))
            yield ChatEnded("stop", 12, len(self.words), mode)
        finally:
            self.closed_chats += 1

    async def close(self) -> None:
        return None
