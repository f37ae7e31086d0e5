"""A mesh under constant, seeded trouble: every answer is whole, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pytest

from daemons.kit.tasks import Tasks
from meshnet.client.sse import TextDelta
from meshnet.wire.routing import CallMessage
from tests.failover.fault_proxy import FaultProxy, Weather
from tests.failover.fleet import LOOK_S, START_S, Fleet, listen, open_fleet, question, whole
from tests.failover.witness import admitted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NODES = {
    f"{letter}{number}": shard
    for letter, shard in zip("hmt", ("0-9", "10-19", "20-29"), strict=True)
    for number in (1, 2)
}
STEP_MS = ("--step-ms", "4", "--strict")
FLAGS = (
    "--timeout-between-tokens",
    "0.8",
    "--timeout-first-token",
    "8",
    "--spare-wait",
    "20",
    "--timeout-connect",
    "1",
)
Ledger = dict[tuple[str, int, int], tuple[int, int, int]]
MOST_FDS_MORE = 12
"""Connections that a daemon may keep open between calls: links to peers and HTTP keep-alives."""


@dataclass
class Trouble:
    """A fleet of which every node is reached through a proxy, and what was done to it."""

    fleet: Fleet
    proxies: dict[str, FaultProxy]
    rng: Random
    done: Counter[str] = field(default_factory=Counter)

    async def strike(self) -> None:
        """Break one node in some way, then mend it: each layer is always held by somebody."""
        name = self.rng.choice(sorted(NODES))
        how = self.rng.choice((self.kill, self.kill, self.stop, self.cut_off, self.half_open, self.reset))
        self.done[how.__name__] += 1
        await how(name)
        await self.fleet.ready(list(NODES))

    async def kill(self, name: str) -> None:
        await self.fleet.kill(name)
        await self.restart(name)

    async def restart(self, name: str) -> None:
        await self.fleet.restart(name)
        self.proxies[name].target = self.fleet.listens_at(name)

    async def stop(self, name: str) -> None:
        self.fleet.signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        finally:
            self.fleet.signal(name, signal.SIGCONT)

    async def cut_off(self, name: str) -> None:
        await self._weather(name, Weather("black_hole"))

    async def half_open(self, name: str) -> None:
        await self._weather(name, Weather("half_open"))

    async def _weather(self, name: str, weather: Weather) -> None:
        self.proxies[name].weather = weather
        await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        self.proxies[name].heal()
        self.proxies[name].reset()  # What vanished would be missed for ever.

    async def reset(self, name: str) -> None:
        self.proxies[name].reset()


@dataclass
class Clients:
    """Asks in every way a client can; each answer is compared with the unbroken run."""

    fleet: Fleet
    rng: Random
    answers: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    cancelled_tokens: int = 0
    number: int = 0

    async def one(self) -> None:
        self.number += 1
        prompt, tokens = f"question number {self.number} of the soak", self.rng.randint(2, 30)
        ways = (self.stream, self.stream, self.stream, self.ask, self.cancel, self.slow)
        way = self.rng.choice(ways)
        await way(prompt, tokens)
        self.answers[way.__name__] += 1

    async def stream(self, prompt: str, tokens: int) -> None:
        told = await listen(self.fleet.client, prompt, tokens)
        assert told.text == whole(prompt, tokens)
        assert told.usage is not None and told.usage.completion_tokens == tokens
        self.tokens += tokens

    async def ask(self, prompt: str, tokens: int) -> None:
        answer = await self.fleet.client.ask(question(prompt, tokens))
        assert answer.text == whole(prompt, tokens)
        assert answer.completion_tokens == tokens
        self.tokens += tokens

    async def cancel(self, prompt: str, tokens: int) -> None:
        text = ""
        async with self.fleet.client.chat(question(prompt, tokens + 100)) as stream:
            async for event in stream:
                text += event.text if isinstance(event, TextDelta) else ""
                if text.count(" ") >= tokens:
                    break
        assert whole(prompt, tokens + 100).startswith(text)
        self.cancelled_tokens += text.count(" ")

    async def slow(self, prompt: str, tokens: int) -> None:
        text = ""
        async with self.fleet.client.chat(question(prompt, tokens)) as stream:
            async for event in stream:
                text += event.text if isinstance(event, TextDelta) else ""
                await asyncio.sleep(0.05)
        assert text == whole(prompt, tokens)
        self.tokens += tokens


@pytest.fixture(autouse=True)
def all_calls_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall of the tracker's process forgets none of them, so that each can be held against the ledger."""
    monkeypatch.setenv("MESHNET_MAX_CALLS_KEPT", "100000")


@contextlib.asynccontextmanager
async def trouble(home: Path, rng: Random) -> AsyncIterator[Trouble]:
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(open_fleet(home, *FLAGS))
        proxies = {name: await stack.enter_async_context(FaultProxy()) for name in NODES}
        starts = [
            fleet.start_node(name, shard, *STEP_MS, "--advertise", proxies[name].url, wait=False)
            for name, shard in NODES.items()
        ]
        await asyncio.gather(*starts)
        for name in NODES:
            proxies[name].target = fleet.listens_at(name)
        await fleet.ready(list(NODES))
        yield Trouble(fleet, proxies, rng)


async def while_running(workers: int, one: Callable[[], Awaitable[None]], enough: Callable[[], bool]) -> None:
    async def worker() -> None:
        while not enough():
            await one()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())


async def forever(strike: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        await strike()
        await asyncio.sleep(every_s)


async def invariants(trouble: Trouble, clients: Clients, fds: dict[str, int]) -> None:
    """I1-I7 of the promises; that texts are whole (I2), each client has seen to as it read."""
    fleet = trouble.fleet
    await fleet.all_free(START_S)
    calls = await all_calls(fleet)
    # I1: one end a call, and the one its client saw.
    assert len({call.call_id for call in calls}) == len(calls) == sum(clients.answers.values())
    ends = Counter(call.outcome for call in calls)
    assert ends == Counter({"ok": ends["ok"], "cancelled": clients.answers["cancel"]}) + Counter(), ends
    await nothing_left(fleet, fds)
    work = admitted(fleet.home)
    tries = [(call.call_id, each) for call in calls for each in call.attempts]
    planned = {(call_id, each.attempt, hop.node_id) for call_id, each in tries for hop in each.hops}
    assert work and not work - planned, f"I7: work that no call of the tracker planned: {sorted(work - planned)[:3]}"
    counted(calls, clients, await settled_ledger(fleet))
    before = await settled_ledger(fleet)
    await fleet.kill("tracker")
    assert ledger(fleet.home) == before, "I6: what was acknowledged is there after kill -9"


async def all_calls(fleet: Fleet) -> list[CallMessage]:
    calls, before = [], None
    while True:
        page = await fleet.client.calls(limit=500, before=before)
        calls += page.calls
        if (before := page.next_before) is None:
            return calls


async def nothing_left(fleet: Fleet, fds: dict[str, int]) -> None:
    """I5: sessions, KV, reservations, sockets and files are as before."""
    async with asyncio.timeout(START_S):  # Nodes say so with their next heartbeat.
        while any(node.in_flight for node in (await fleet.nodes()).values()):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(LOOK_S)
    assert not any(node.tracker_in_flight for node in (await fleet.nodes()).values())
    for name, count in fds.items():
        now = open_files(fleet, name)
        assert now <= count + MOST_FDS_MORE, f"{name} had {count} open files and has {now}"


def open_files(fleet: Fleet, name: str) -> int:
    """Sockets among them."""
    return psutil.Process(fleet.processes[name].running.pid).num_fds()


def counted(calls: Sequence[CallMessage], clients: Clients, rows: Ledger) -> None:
    """I3 and I4: the ledger has each token once, those that were delivered and those of answers nobody waited for."""
    assert sum(call.completion_tokens for call in calls if call.outcome == "ok") == clients.tokens
    assert sum(call.completion_tokens for call in calls if call.outcome == "cancelled") >= clients.cancelled_tokens
    heads: Counter[str] = Counter()
    for (call_id, hop, _), (tokens, _, _) in rows.items():
        if hop == 0:
            heads[call_id] += tokens
    for call in calls:
        assert heads[call.call_id] == call.prompt_tokens + call.completion_tokens or (
            call.outcome == "cancelled" and not heads[call.call_id] and not call.completion_tokens
        ), f"{call.call_id} {call.outcome}: {heads[call.call_id]} tokens in the ledger"
    assert set(heads) <= {call.call_id for call in calls}


def ledger(home: Path) -> Ledger:
    """As it lies on the disk: tokens, replayed tokens and work units by call, hop and attempt."""
    with contextlib.closing(sqlite3.connect(f"file:{home}/trackers/tracker.db?mode=ro", uri=True)) as database:
        columns = "call_id, hop, attempt, tokens, replayed_tokens, work_units"
        rows = database.execute(f"SELECT {columns} FROM usage").fetchall()
    found = {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in rows}
    assert len(found) == len(rows)
    return found


async def settled_ledger(fleet: Fleet) -> Ledger:
    """Once all that the tracker counted is written: its sums, and so nothing lost and nothing twice."""
    totals = (await fleet.client.usage()).totals
    wanted = [sum(getattr(each, name) for each in totals) for name in ("tokens", "replayed_tokens", "work_units")]

    def is_written() -> bool:
        rows = ledger(fleet.home).values()
        return [sum(row[n] for row in rows) for n in range(3)] == wanted

    async with asyncio.timeout(START_S):
        while not is_written():  # noqa: ASYNC110 (another process writes)
            await asyncio.sleep(LOOK_S)
    return ledger(fleet.home)


async def soak(home: Path, seed: int, seconds: float, workers: int = 4) -> None:
    print(f"soak seed={seed} seconds={seconds:g}")
    tasks = Tasks("soak")
    async with trouble(home, Random(seed)) as made:
        clients = Clients(made.fleet, Random(seed + 1))
        fds = {name: open_files(made.fleet, name) for name in ("tracker", *NODES)}
        end = time.monotonic() + seconds
        striking = tasks.start(forever(made.strike, 0.5), "strike", quiet=True)
        try:
            await while_running(workers, clients.one, lambda: time.monotonic() > end or striking.done())
        finally:
            striking.cancel()
            await asyncio.wait((striking,))
        for proxy in made.proxies.values():
            proxy.heal()
        for name in NODES:
            made.fleet.signal(name, signal.SIGCONT)
            if made.fleet.processes[name].is_dead:
                await made.restart(name)
        await made.fleet.ready(list(NODES))
        print(f"soak seed={seed} answers={dict(clients.answers)} faults={dict(made.done)}")
        assert clients.number > 20 and sum(made.done.values()) > 3
        await invariants(made, clients, fds)
    await tasks.close()


async def test_soak_of_a_minute(tmp_path: Path) -> None:
    seed = int(os.environ.get("MESHNET_SOAK_SEED") or Random().getrandbits(32))
    await soak(tmp_path, seed, float(os.environ.get("MESHNET_SOAK_S") or 60))


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_soak_of_ten_minutes(tmp_path: Path, seed: int) -> None:
    await soak(tmp_path, seed, 600)


async def test_200_streams_while_nodes_are_killed(tmp_path: Path) -> None:
    """Eight at a time, a node killed or started every 3 s, each layer always held by somebody: no client sees it."""
    seed = Random().getrandbits(32)
    print(f"streams seed={seed}")
    tasks = Tasks("streams")
    async with trouble(tmp_path, Random(seed)) as made:
        clients = Clients(made.fleet, Random(seed))

        async def strike() -> None:
            made.done["kill"] += 1
            await made.kill(made.rng.choice(sorted(NODES)))
            await made.fleet.ready(list(NODES))

        async def one() -> None:
            clients.number += 1
            await clients.stream(f"stream number {clients.number}", 30)
            clients.answers["stream"] += 1

        striking = tasks.start(forever(strike, 1.5), "strike", quiet=True)
        try:
            await while_running(8, one, lambda: clients.number >= 200 or striking.done())
        finally:
            striking.cancel()
            await asyncio.wait((striking,))
        print(f"streams={clients.number} kills={made.done['kill']}")
        assert clients.answers["stream"] >= 200 and made.done["kill"] >= 2
        await invariants(made, clients, {})
    await tasks.close()
