"""A machine with nothing but the package joins a real mesh: assigned, fetched, serving, moved, within its memory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from meshnet.client.http import open_http
from meshnet.client.tracker import ChatAnswer, TrackerClient
from meshnet.domain.budget import Promise, memory_need
from meshnet.domain.errors import Overloaded
from meshnet.domain.shards import Shard
from meshnet.weights.cost import model_cost
from meshnet.weights.store import Store
from meshnet.wire.messages import NodeMessage
from meshnet.wire.runfile import RunFile

pytestmark = [pytest.mark.real, pytest.mark.slow]

READY_S = 120.0
MODEL = "smollm2-135m"


class Machines:
    """Daemons as processes, each in a home of its own."""

    def __init__(self, folder: Path, models: Path) -> None:
        self._folder, self._models = folder, models
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, kind: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        if kind == "tracker" and not (home / "models").exists():
            (home / "models").symlink_to(self._models)
        environ = {**os.environ, "MESHNET_HOME": str(home), "OMP_NUM_THREADS": "1"}
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"daemons.{kind}", "--name", name, "--port", "0", *words],
                env=environ,
                stdout=log,
                stderr=log,
            )
        self._processes[name] = process
        return process

    def url(self, name: str) -> str:
        path = self._folder / name / "run" / f"{name}.json"
        until(path.exists, lambda: self.log(name))
        return msgspec.json.decode(path.read_bytes(), type=RunFile).url

    def store(self, name: str) -> Store:
        return Store(self._folder / name / "models")

    def log(self, name: str) -> str:
        return (self._folder / name / "log").read_text()

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(is_so: object, what: object, within_s: float = READY_S) -> None:
    """Ask again and again what another process has come to: there is nothing of it to wait on."""
    deadline = time.monotonic() + within_s
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline, what()  # type: ignore[operator]
        time.sleep(0.5)


@pytest.fixture
def machines(tmp_path: Path, real_store: Store) -> Iterator[Machines]:
    made = Machines(tmp_path, real_store.root)
    yield made
    made.close()


def nodes(url: str) -> dict[str, NodeMessage]:
    async def ask() -> tuple[NodeMessage, ...]:
        async with open_http() as http:
            return (await TrackerClient(http, url).nodes()).nodes

    return {node.name: node for node in asyncio.run(ask())}


def is_ready(url: str, name: str) -> bool:
    node = nodes(url).get(name)
    return node is not None and node.state == "ready"


def test_empty_machine_is_given_layers_fetches_only_those_and_serves(machines: Machines, real_store: Store) -> None:
    machines.start("tracker", "t")
    url = machines.url("t")
    words = ("--tracker", url, "--threads", "1", "--sessions", "2", "--context", "512")
    machines.start("node", "a", *words, "--memory", "1100MB")
    machines.url("a")
    machines.start("node", "b", *words, "--memory", "1100MB")
    for name in "ab":
        until(lambda name=name: is_ready(url, name), lambda name=name: machines.log(name))
    manifest = real_store.open(MODEL).manifest
    spans = []
    for name, node in nodes(url).items():
        shard = Shard(node.shard_start, node.shard_end)
        spans.append(range(shard.start, shard.end + 1))
        held = {file.name for file in machines.store(name).path(MODEL).iterdir()}
        assert held == {entry.name for entry in manifest.files_for(shard)} | {"manifest.json"}
        machines.store(name).open(MODEL).verify(shard)
        (fetched,) = re.findall(r"weights fetched layers=\S+ bytes=(\d+)", machines.log(name))
        assert int(fetched) == real_store.open(MODEL).shard_bytes(shard), "counted: no byte more than its layers"
        assert node.memory_budget_bytes == 1_100_000_000 and node.hardware.cores_logical >= 1
        assert node.loading_total_bytes == 2 * int(fetched)
        assert node.loading_done_bytes == pytest.approx(node.loading_total_bytes, rel=0.001), "but the headers"
        assert node.rss_bytes < node.memory_budget_bytes
    assert set(spans[0]) | set(spans[1]) == set(range(30))

    async def question() -> str:
        async with open_http() as http:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Capital of France?"}]}
            return (await TrackerClient(http, url).ask({**body, "max_tokens": 8, "temperature": 0})).text

    assert "France" in asyncio.run(question())


def budget_mb(real_store: Store, layers: int) -> int:
    """Megabytes for so many layers of the promise below, wherever they lie."""
    model = real_store.open(MODEL)
    cost = model_cost(model.manifest, model.config, "float32")
    middle = memory_need(cost, Shard(1, min(layers, 28)), Promise(256, 1))
    ends = (layers - min(layers, 28)) * (middle.weights_bytes + middle.kv_bytes) // min(layers, 28)
    return (middle.total_bytes + ends + cost.embedding_bytes + cost.final_bytes) // 1_000_000 + 1


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("apart_s", [0.0, 1.0])
def test_five_machines_of_3_5_7_10_and_30_layers_leave_no_gap(
    machines: Machines, real_store: Store, apart_s: float
) -> None:
    machines.start("tracker", "t")
    url = machines.url("t")
    words = ("--tracker", url, "--threads", "1", "--sessions", "1", "--context", "256")
    for layers in (3, 5, 7, 10, 30):
        machines.start("node", f"m{layers}", *words, "--memory", f"{budget_mb(real_store, layers)}MB")
        time.sleep(apart_s)
    names = [f"m{layers}" for layers in (3, 5, 7, 10, 30)]
    until(lambda: all(is_ready(url, name) for name in names), lambda: "".join(map(machines.log, names)), 500.0)
    spans = {name: range(node.shard_start, node.shard_end + 1) for name, node in nodes(url).items()}
    assert {layer for span in spans.values() for layer in span} == set(range(30))
    assert len({(span.start, span.stop) for name, span in spans.items() if name != "m30"}) == 4, spans


@pytest.mark.full
@pytest.mark.timeout(300)
def test_advised_node_drains_moves_and_serves_other_layers(machines: Machines) -> None:
    machines.start("tracker", "t")
    url = machines.url("t")
    words = ("--tracker", url, "--threads", "1", "--model", MODEL, "--memory", "1200MB", "--sessions", "1")
    for name in "ab":
        machines.start("node", name, *words, "--context", "128", "--shard", "0-14", "--rebalance")
    until(
        lambda: sorted(str(node.shard_start) for node in nodes(url).values() if node.state == "ready") == ["0", "15"],
        lambda: machines.log("t") + machines.log("a") + machines.log("b"),
    )
    assert len(nodes(url)) == 2
    assert "moving model" in machines.log("a") + machines.log("b")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_memory_stays_in_its_budget_and_a_session_more_is_refused(machines: Machines) -> None:
    machines.start("tracker", "t")
    url = machines.url("t")
    process = machines.start(
        "node", "a", "--tracker", url, "--threads", "1", "--sessions", "8", "--context", "256", "--memory", "1400MB"
    )
    until(lambda: is_ready(url, "a"), lambda: machines.log("a"))
    (node,) = nodes(url).values()
    assert (node.shard_start, node.shard_end) == (0, 29)
    peak = 0

    async def watch(done: asyncio.Event) -> None:
        nonlocal peak
        me = psutil.Process(process.pid)
        while not done.is_set():
            peak = max(peak, me.memory_info().rss)
            await asyncio.sleep(0.05)

    async def run() -> list[object]:
        async with open_http() as http:
            client = TrackerClient(http, url)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 120}], "ignore_eos": True}
            prompt = (await client.ask({**body, "max_tokens": 1})).prompt_tokens
            body["max_tokens"] = 256 - prompt  # The whole context that the node promised.
            done = asyncio.Event()
            watching = asyncio.ensure_future(watch(done))
            answers = await asyncio.gather(*(client.ask(body) for _ in range(9)), return_exceptions=True)
            done.set()
            await watching
            return list(answers)

    answers = asyncio.run(run())
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert len(refused) == 1 and isinstance(refused[0], Overloaded), answers
    assert "KV" in refused[0].message
    served = [answer for answer in answers if isinstance(answer, ChatAnswer)]
    assert {answer.prompt_tokens + answer.completion_tokens for answer in served} == {256}
    assert process.poll() is None and peak < node.memory_budget_bytes, f"{peak} of {node.memory_budget_bytes}"
    process.send_signal(signal.SIGTERM)
