"""The real model in real processes: whatever is killed, the client reads the unbroken run's text, byte for byte."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from meshnet.bench.processes import BenchMesh, bench_mesh
from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta, UsageReport
from meshnet.client.tracker import TrackerClient
from meshnet.weights.places import HOME_VARIABLE
from meshnet.weights.store import Store

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

MODEL = "smollm2-135m"
SHARDS = {"head": "0-9", "middle": "10-19", "tail": "20-29"}
POSITIONS = list(SHARDS)
N_TOKENS = 24
PROMPT = "Write two sentences about the sea."
SEED = 11
# One position a moment in every test run; the rest of the matrix when all is asked for.
EVERY_RUN = {("head", 1), ("middle", 5), ("tail", N_TOKENS - 1)}
MATRIX = [
    pytest.param(position, token, marks=() if (position, token) in EVERY_RUN else pytest.mark.full)
    for position in POSITIONS
    for token in (0, 1, 5, 20, N_TOKENS - 1)
]


@dataclass
class Real:
    mesh: BenchMesh
    client: TrackerClient
    whole: dict[str, str]
    """The unbroken run's text, greedy and seeded."""

    async def mend(self) -> None:
        """Start again what is dead."""
        dead = [name for name, daemon in self.mesh.daemons.items() if daemon.process.poll() is not None]
        for name in dead:
            self.mesh.start_node(name, MODEL, SHARDS[name.split("-")[0]])
        self.mesh.wait_back(dead)


@pytest.fixture(scope="module")
def mesh(real_store: Store) -> Iterator[BenchMesh]:
    """Two nodes for each third of the layers, one thread each."""
    patch = pytest.MonkeyPatch()
    patch.setenv(HOME_VARIABLE, str(Path(real_store.root).parent))
    try:
        with bench_mesh(threads=1) as mesh:
            mesh.start_tracker("--route-policy", "random")
            names = [f"{position}-{copy}" for position in POSITIONS for copy in (1, 2)]
            for name in names:
                mesh.start_node(name, MODEL, SHARDS[name.split("-")[0]])
            mesh.wait_ready(names)
            yield mesh
    finally:
        patch.undo()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(mesh: BenchMesh) -> AsyncIterator[Real]:
    async with open_http() as http:
        client = TrackerClient(http, mesh.tracker_url)
        whole = {how: (await client.ask(request(how))).text for how in ("greedy", "seeded")}
        yield Real(mesh, client, whole)


def request(how: str) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": N_TOKENS,
        "temperature": 0 if how == "greedy" else 0.9,
        "seed": SEED,
        "ignore_eos": True,
    }


async def broken(real: Real, how: str, position: int, token: int, number: signal.Signals) -> tuple[str, UsageReport]:
    """The answer while the node at this position of its route gets this signal at this token."""
    names = {node.node_id: node.name for node in real.mesh.nodes()}
    text, pieces, usage, victim = "", 0, None, ""

    async def strike() -> str:
        route = (await real.client.calls()).calls[0].attempts[-1].hops
        name = names[route[position].node_id]
        real.mesh.daemons[name].process.send_signal(number)
        return name

    try:
        async with real.client.chat(request(how)) as stream:
            if token == 0:
                victim = await strike()  # Headers at the latest with the first text: it may just have come.
            async for event in stream:
                if isinstance(event, UsageReport):
                    usage = event
                if not isinstance(event, TextDelta) or not event.text:
                    continue
                text += event.text
                pieces += 1
                if pieces == token:
                    victim = await strike()
    finally:
        if number is signal.SIGSTOP and victim:
            real.mesh.daemons[victim].process.send_signal(signal.SIGCONT)
    assert usage is not None and victim
    return text, usage


@pytest.mark.parametrize(("position", "token"), MATRIX)
async def test_kill_9_of_a_real_node(real: Real, position: str, token: int) -> None:
    await real.mend()
    how = "seeded" if token == 5 else "greedy"
    text, usage = await broken(real, how, POSITIONS.index(position), token, signal.SIGKILL)
    assert text == real.whole[how]
    assert usage.completion_tokens == N_TOKENS
    assert (await real.client.calls()).calls[0].outcome == "ok"


@pytest.mark.parametrize(
    ("position", "token"),
    [pytest.param(p.values[0], p.values[1], marks=pytest.mark.full) for p in MATRIX if p.values[1] in (1, 5, 20)],
)
async def test_sigstop_of_a_real_node(real: Real, position: str, token: int) -> None:
    await real.mend()
    text, usage = await broken(real, "greedy", POSITIONS.index(position), token, signal.SIGSTOP)
    assert text == real.whole["greedy"]
    assert usage.completion_tokens == N_TOKENS


@pytest.mark.full
async def test_two_kills_of_real_nodes_in_one_answer(real: Real) -> None:
    await real.mend()
    names = {node.node_id: node.name for node in real.mesh.nodes()}
    text, pieces = "", 0
    async with real.client.chat(request("greedy")) as stream:
        async for event in stream:
            if not isinstance(event, TextDelta) or not event.text:
                continue
            text += event.text
            pieces += 1
            if pieces in (4, 12):
                route = (await real.client.calls()).calls[0].attempts[-1].hops
                real.mesh.daemons[names[route[1 if pieces == 4 else 2].node_id]].process.kill()
    assert text == real.whole["greedy"]
    assert (await real.client.calls()).calls[0].reroutes >= 2
