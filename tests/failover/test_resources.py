"""What a call takes is given back: a hundred disconnects, overload, a shard that changes under a planner."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from daemons.kit.tasks import Tasks
from meshnet.client.http import open_http
from meshnet.client.node import NodeClient
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import NoRoute, Overloaded
from tests.failover.fleet import Fleet, Listening, listen, open_fleet, whole
from tests.failover.live import LiveMesh, open_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DISCONNECTS = 100
TOKENS = 20


async def thirds(mesh: LiveMesh, *, step_s: float = 0.002, kv_budget: int = 1 << 24) -> None:
    for name, shard in (("h", "0-9"), ("m", "10-19"), ("t", "20-29")):
        await mesh.add(name, shard, step_s=step_s, kv_budget=kv_budget)


def served(mesh: LiveMesh) -> int:
    """Connections that the tracker and the nodes have open, as the system sees it."""
    urls = [mesh.running.url, *(node.site.url for node in mesh.nodes.values())]
    ports = {int(url.rsplit(":", 1)[1]) for url in urls}
    connections = psutil.Process().net_connections("tcp")
    return sum(1 for each in connections if each.status == "ESTABLISHED" and each.laddr.port in ports)


async def leave(client: TrackerClient, number: int, rng: Random) -> None:
    """Read for a moment, then hang up; every fifth client is cancelled twice."""
    tasks = Tasks(f"client {number}")
    reading = tasks.start(listen(client, f"disconnect {number}", 2000), "read", quiet=True)
    await asyncio.wait((reading,), timeout=rng.uniform(0.0, 0.4))
    reading.cancel()
    if number % 5 == 0:
        await asyncio.sleep(0)
        reading.cancel()
    await asyncio.wait((reading,))
    await tasks.close()


async def test_100_disconnects_leave_nothing_behind(tmp_path: Path) -> None:
    """Tasks, sockets, KV and reservations are what they were, to the last one; and so is the leavers' own pool."""
    rng = Random(6)
    async with open_live(tmp_path) as mesh:
        await thirds(mesh)
        assert (await listen(mesh.client, "before", 4)).text == whole("before", 4)
        await mesh.all_free()
        tasks_before, sockets_before = len(asyncio.all_tasks()), served(mesh)
        async with open_http() as http:
            leavers = TrackerClient(http, mesh.running.url)
            for start in range(0, DISCONNECTS, 10):
                await asyncio.gather(*(leave(leavers, start + n, rng) for n in range(10)))
                await mesh.all_free(5.0)
            told = await asyncio.gather(*(listen(leavers, f"again {n}", 4) for n in range(10)))
            assert [each.text for each in told] == [whole(f"again {n}", 4) for n in range(10)], (
                "their pool still serves"
            )
        await mesh.until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        await mesh.until(lambda: served(mesh) <= sockets_before)
        await mesh.all_free()
        use = [live.node.worker.kv for live in mesh.nodes.values()]
        assert [(kv.sessions, kv.reserved_bytes) for kv in use] == [(0, 0)] * 3
        assert [mesh.running.tracker.planner.in_flight(live.node_id) for live in mesh.nodes.values()] == [0] * 3
        ends = Counter(call.outcome for call in (await mesh.client.calls(limit=500)).calls)
        assert ends["cancelled"] > DISCONNECTS / 2 and set(ends) <= {"ok", "cancelled"}
        assert (await listen(mesh.client, "after", 4)).text == whole("after", 4)


async def test_gone_client_stops_every_node_within_a_second(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with open_live(tmp_path) as mesh:
        await thirds(mesh, step_s=0.01)
        listening = Listening(mesh.client, "gone at token three", 2000, tasks)
        await listening.token(3)
        listening.done.cancel()
        await mesh.all_free(1.0)
        steps = [node.node.worker.forward_steps for node in mesh.nodes.values()]
        assert (await mesh.client.calls()).calls[0].outcome == "cancelled"
        assert steps == [node.node.worker.forward_steps for node in mesh.nodes.values()]
    await tasks.close()


async def good_tokens_per_s(mesh: LiveMesh, clients: int, seconds: float) -> tuple[float, list[float], int]:
    """Tokens/s of whole answers, the durations of those, and how many requests were refused, with so many clients that
    come back after a refusal."""
    end, tokens, refused = time.monotonic() + seconds, 0, 0
    durations: list[float] = []

    async def client(number: int) -> None:
        nonlocal tokens, refused
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                told = await listen(mesh.client, f"load {number}", TOKENS)
            except Overloaded:
                refused += 1
                await asyncio.sleep(0.5)  # Half of what Retry-After says.
                continue
            assert told.text == whole(f"load {number}", TOKENS)
            tokens += TOKENS
            durations.append(time.monotonic() - began)

    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return tokens / (time.monotonic() - began), durations, refused


async def test_overload_keeps_goodput_and_bounds_what_is_admitted(tmp_path: Path) -> None:
    """Capacity is KV for four answers. Sixteen clients get 503 with Retry-After, and no fewer tokens in all."""
    reserve = (2 + TOKENS) * 64 * 10
    async with open_live(tmp_path) as mesh:
        await thirds(mesh, step_s=0.02, kv_budget=4 * reserve)
        peak, usual, _ = await good_tokens_per_s(mesh, 4, 5.0)
        loaded, durations, refused = await good_tokens_per_s(mesh, 16, 5.0)
        print(
            f"overload: peak {peak:.0f} tokens/s, at four times the capacity {loaded:.0f}; p95 "
            f"{sorted(usual)[int(0.95 * len(usual))]:.2f} s and {sorted(durations)[int(0.95 * len(durations))]:.2f} s"
        )
        assert refused > 0
        assert loaded >= 0.8 * peak
        assert sorted(durations)[int(0.95 * len(durations))] <= 3 * max(usual)
        assert all(node.health == "ok" for node in (await mesh.client.nodes()).nodes), "a full node is no sick one"
        await mesh.all_free()


async def test_gap_is_503_that_names_the_layers_and_ends_when_they_are_back(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with open_live(tmp_path, spare_wait=0.3) as mesh:
        await thirds(mesh)
        middle = mesh.nodes["m"]
        await middle.announcer.leave()
        with pytest.raises(NoRoute, match="10-19"):
            await listen(mesh.client, "gap", 4)
    async with open_live(tmp_path, spare_wait=20.0) as mesh:
        await mesh.add("h", "0-14")
        waiting = Listening(mesh.client, "back in time", 4, tasks)
        await mesh.until(lambda: bool(mesh.running.tracker.wall.running))
        await mesh.add("t", "15-29")
        assert (await waiting.end()).text == whole("back in time", 4)
    await tasks.close()


async def test_node_that_registers_again_and_again_never_breaks_an_answer(tmp_path: Path) -> None:
    """A new epoch each time: a route planned with the old one is refused by the node and planned anew."""
    async with open_live(tmp_path) as mesh:
        await thirds(mesh)
        spare = await mesh.add("spare", "10-19")
        done = asyncio.Event()

        async def again() -> int:
            times = 0
            while not done.is_set() or times < 100:
                spare.announcer.registered = False
                await spare.announcer.tick()
                times += 1
                await asyncio.sleep(0.005)
            return times

        async def ask() -> None:
            for number in range(40):
                assert (await listen(mesh.client, f"epoch {number}", 5)).text == whole(f"epoch {number}", 5)
            done.set()

        times, _ = await asyncio.gather(again(), ask())
        assert times >= 100
        await mesh.all_free()


async def test_answers_are_counted_once_in_the_ledger_whatever_broke(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with open_live(tmp_path) as mesh:
        await thirds(mesh, step_s=0.01)
        await mesh.add("m2", "10-19", step_s=0.01)
        listening = Listening(mesh.client, "count me once", 30, tasks)
        victim_id = (await listening.token(5)).victim(1)
        victim = next(node for node in mesh.nodes.values() if node.node_id == victim_id)
        await victim.node.links.close()
        told = await listening.end()
        assert told.text == whole("count me once", 30)
        rows = [row for row in (await mesh.client.usage(limit=500)).rows if row.hop == 0]
        assert sum(row.tokens for row in rows) == 3 + 30
        assert len({(row.call_id, row.hop, row.attempt) for row in rows}) == len(rows) >= 2
        await mesh.all_free(10.0)
    await tasks.close()


HUNGRY_MIB = 512
"""What a step of the node that is to starve takes: more than all else that its process ever asks for at once."""


@contextlib.contextmanager
def little_memory(pid: int, idle_bytes: int) -> Iterator[None]:
    """The process, which took ``idle_bytes`` of address space between two steps, gets half of what a step needs beside
    that."""
    limit = idle_bytes + (HUNGRY_MIB << 19)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


async def kv_budget(fleet: Fleet, name: str) -> int:
    async with open_http() as http:
        return (await NodeClient(http, fleet.listens_at(name)).status()).kv_budget_bytes


async def test_process_without_memory_gives_its_session_away_and_lives(tmp_path: Path) -> None:
    """The system itself refuses the memory of a step in mid-stream: the answer goes on elsewhere, nobody is blamed, the
    node takes half as much, and has its next session as soon as there is memory."""
    tasks = Tasks("test")
    async with open_fleet(tmp_path) as fleet:
        for name, shard in (("h", "0-9"), ("t", "20-29")):
            await fleet.start_node(name, shard, wait=False)
        await fleet.start_node("m", "10-19", "--hungry-mib", str(HUNGRY_MIB), "--step-ms", "12")
        await fleet.ready(("h", "t"))
        assert (await listen(fleet.client, "warm", 2)).text == whole("warm", 2)
        await fleet.all_free()
        pid, budget = fleet.processes["m"].running.pid, await kv_budget(fleet, "m")
        idle_bytes = psutil.Process(pid).memory_info().vms
        listening = Listening(fleet.client, "memory runs out", 800, tasks)
        await listening.token(5)
        await fleet.start_node("m2", "10-19")
        with little_memory(pid, idle_bytes):
            assert (await listening.end()).text == whole("memory runs out", 800)
            assert (await fleet.client.calls(limit=1)).calls[0].reroutes >= 1
            assert await kv_budget(fleet, "m") == budget // 2
            assert (await listen(fleet.client, "while it has none", 5)).text == whole("while it has none", 5)
        assert fleet.processes["m"].running.pid == pid and not fleet.processes["m"].is_dead
        assert "MemoryError" in (tmp_path / "m.log").read_text("utf-8")
        assert {node.health for node in (await fleet.nodes()).values()} == {"ok"}, "a full node is no sick one"
        await fleet.kill("m2")
        for _ in range(3):
            assert (await listen(fleet.client, "with memory again", 5)).text == whole("with memory again", 5)
        await fleet.all_free()
    await tasks.close()
