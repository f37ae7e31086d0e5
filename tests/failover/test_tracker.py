"""The tracker stops, dies and comes back; clocks jump: nodes keep their shards and are soon known again."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from daemons.kit.clock import SWITCH, VARIABLE
from daemons.kit.tasks import Tasks
from daemons.node.announce import BACKOFF_MOST_S
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError, Overloaded
from tests.failover.fleet import LOOK_S, Fleet, Listening, listen, open_fleet, whole
from tests.failover.live import open_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BACK_WITHIN_S = 20.0
NAMES = ("h", "m", "t")
HOUR_S = 3600.0


async def thirds(fleet: Fleet, *flags: str) -> None:
    for name, shard in zip(NAMES, ("0-9", "10-19", "20-29"), strict=True):
        await fleet.start_node(name, shard, *flags, wait=False)
    await fleet.ready(NAMES)


async def back(fleet: Fleet) -> float:
    """Seconds until a tracker at the same address has every node again."""
    port = fleet.url.rsplit(":", 1)[1]
    began = time.monotonic()
    await fleet.start_tracker(port=int(port))
    await fleet.ready(NAMES)
    return time.monotonic() - began


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_nodes_are_back_within_20_s_of_the_trackers_return(tmp_path: Path, how: signal.Signals) -> None:
    tasks = Tasks("test")
    async with open_fleet(tmp_path, "--drain", "0.2", "--timeout-between-tokens", "0.6") as fleet:
        await thirds(fleet, "--step-ms", "8")
        pids = {name: fleet.processes[name].running.pid for name in NAMES}
        listening = Listening(fleet.client, "the tracker goes", 2000, tasks)
        await listening.token(3)
        fleet.signal("tracker", how)
        with pytest.raises(MeshnetError):  # Never a silent end.
            await listening.end()
        assert whole("the tracker goes", 2000).startswith(listening.told.text)
        await fleet.ended("tracker")
        await fleet.all_free(10.0)
        assert await back(fleet) < BACK_WITHIN_S
        assert pids == {name: fleet.processes[name].running.pid for name in NAMES}
        assert (await listen(fleet.client, "and is back", 4)).text == whole("and is back", 4)
    await tasks.close()


async def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as fleet:
        await thirds(fleet)
        for number in range(5):
            await listen(fleet.client, f"acknowledged {number}", 4)
        acknowledged = set()
        async with fleet.client.events(after=0) as events:
            async for event in events:  # An event's id is given out after its commit.
                if event.kind == "call.finished":
                    acknowledged.add(event.call_id)
                if len(acknowledged) == 5:
                    break
        rows = (await fleet.client.usage(limit=100)).rows
        await fleet.kill("tracker")
        await back(fleet)
        kept = (await fleet.client.usage(limit=100)).rows
        keys = [(row.call_id, row.hop, row.attempt) for row in kept]
        assert len(set(keys)) == len(keys)
        assert {row.call_id for row in kept} >= acknowledged
        assert sorted(row.work_units for row in kept) == sorted(row.work_units for row in rows)


async def test_new_requests_are_refused_while_a_tracker_drains(tmp_path: Path) -> None:
    tasks = Tasks("test")
    async with open_fleet(tmp_path) as fleet, open_http() as http:
        await thirds(fleet, "--step-ms", "8")
        listening = Listening(fleet.client, "the tracker drains", 60, tasks)
        await listening.token(3)
        fleet.signal("tracker", signal.SIGTERM)
        other = TrackerClient(http, fleet.url)
        async with asyncio.timeout(10.0):
            while True:
                try:
                    await listen(other, "too late", 1)
                except Overloaded as error:
                    assert error.code == "shutting_down"
                    break
                await asyncio.sleep(LOOK_S)
        assert (await listening.end()).text == whole("the tracker drains", 60)
        assert await fleet.ended("tracker") == 0
    await tasks.close()


def test_fifty_nodes_do_not_come_back_in_the_same_moment() -> None:
    """Full jitter over BACKOFF_MOST_S: the same formula as Announcer.delay_s after failures."""
    times = sorted(BACKOFF_MOST_S * Random(seed).random() for seed in range(50))
    most = max(sum(1 for at in times if start <= at < start + 0.1) for start in times)
    assert most < 10 and times[-1] <= BACKOFF_MOST_S


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_wall_clock_that_jumps_ends_no_lease_and_no_answer(tmp_path: Path, jump_s: float) -> None:
    tasks = Tasks("test")
    wall = [time.time() - time.monotonic()]
    async with open_live(tmp_path, wall=lambda: wall[0] + time.monotonic()) as mesh:
        for name, shard in (("h", "0-14"), ("t", "15-29")):
            await mesh.add(name, shard, step_s=0.01)
        listening = Listening(mesh.client, "the clock jumps", 40, tasks)
        await listening.token(3)
        leases = {name: mesh.lease(live) for name, live in mesh.nodes.items()}
        wall[0] += jump_s
        mesh.running.tracker.fleet.tick()
        told = await listening.end()
        assert told.text == whole("the clock jumps", 40)
        assert leases.keys() == {name for name, live in mesh.nodes.items() if mesh.lease(live) is not None}
        assert all(
            lease and (now := mesh.lease(mesh.nodes[n])) and now.node.epoch == lease.node.epoch
            for n, lease in leases.items()
        )
        assert (await listen(mesh.client, "after the jump", 4)).text == whole("after the jump", 4)
        assert ((await mesh.client.calls()).calls[0].duration_s or 0.0) < 60
    await tasks.close()


class WrongClock:
    """The wall clock of a process: its file, and the environment that makes the process look there."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "clock"
        self._patch = patch
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """Off by this much from now on."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(str(seconds))
        temporary.replace(self._file)

    def __enter__(self) -> None:
        """Processes started in the block have this clock."""
        self._patch.setenv(VARIABLE, str(self._file))
        self._patch.setenv(SWITCH, "1")

    def __exit__(self, *_: object) -> None:
        self._patch.delenv(VARIABLE)
        self._patch.delenv(SWITCH)


async def until(true: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await true():  # noqa: ASYNC110 (other processes decide)
            await asyncio.sleep(LOOK_S)


async def until_log(fleet: Fleet, name: str, words: str) -> None:
    async def said() -> bool:
        return re.search(words, fleet.log(name)) is not None

    await until(said)


async def until_gone(fleet: Fleet, *names: str) -> None:
    async def gone() -> bool:
        return not set(names) & set(await fleet.nodes())

    await until(gone)


async def test_clocks_that_jump_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node and of the tracker, forward and back: streams go on, leases stay, nobody is refused."""
    tasks, node_clock = Tasks("test"), WrongClock(tmp_path, monkeypatch)
    (tmp_path / "tracker").mkdir()
    tracker_clock = WrongClock(tmp_path / "tracker", monkeypatch)
    with tracker_clock:
        opened = open_fleet(tmp_path, "--spare-wait", "0.1")
        fleet = await opened.__aenter__()
    try:
        with node_clock:
            await fleet.start_node("m", "10-19", "--step-ms", "8", "--strict")
        for name, shard in (("h", "0-9"), ("t", "20-29")):
            await fleet.start_node(name, shard, "--strict")
        epochs = {name: node.epoch for name, node in (await fleet.nodes()).items()}
        listening = Listening(fleet.client, "clocks jump", 1000, tasks)
        await listening.token(3)
        for clock, jump_s in ((node_clock, HOUR_S), (tracker_clock, -HOUR_S), (node_clock, -HOUR_S)):
            clock.jump(jump_s)
            since = time.monotonic()
            await until(heard_since(fleet, since))
            assert (await listen(fleet.client, f"jumped {jump_s}", 4)).text == whole(f"jumped {jump_s}", 4)
        assert (await listening.end()).text == whole("clocks jump", 1000)
        assert {name: node.epoch for name, node in (await fleet.nodes()).items()} == epochs
        assert "signature_expired" not in fleet.log("tracker") and "tracker not told" not in fleet.log("m")
    finally:
        await opened.__aexit__(None, None, None)
    await tasks.close()


def heard_since(fleet: Fleet, since: float) -> Callable[[], Awaitable[bool]]:
    """Whether every node's last heartbeat came after this moment."""

    async def heard() -> bool:
        nodes = await fleet.nodes()
        return all(node.heartbeat_age_s < time.monotonic() - since for node in nodes.values())

    return heard


async def test_node_that_starts_with_a_wrong_clock_is_told_by_how_much_and_is_here_when_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WrongClock(tmp_path, monkeypatch)
    async with open_fleet(tmp_path) as fleet:
        clock.jump(HOUR_S)
        with clock:
            await fleet.start_node("m", "0-29", wait=False)
        await until_log(fleet, "m", r"clock 3(59|60)\d s ahead of the one here")
        assert not await fleet.nodes()
        clock.jump(0.0)
        await fleet.ready(["m"], BACK_WITHIN_S)
        assert (await listen(fleet.client, "right again", 4)).text == whole("right again", 4)


async def test_tracker_that_starts_with_a_wrong_clock_takes_the_right_one_once_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WrongClock(tmp_path, monkeypatch)
    clock.jump(-HOUR_S)
    with clock:
        opened = open_fleet(tmp_path)
        fleet = await opened.__aenter__()
    try:
        await fleet.start_node("m", "0-29", wait=False)
        await until_log(fleet, "m", r"clock 3(59|60)\d s ahead of the one here")
        clock.jump(0.0)
        await fleet.ready(["m"], BACK_WITHIN_S)
        assert "clock of the system taken anew jump_s=3600" in fleet.log("tracker")
    finally:
        await opened.__aexit__(None, None, None)


async def told(fleet: Fleet, kind: str) -> str:
    """The text of the first event of this kind, which is a problem."""
    async with asyncio.timeout(10.0), fleet.client.events(after=0) as events:
        async for event in events:
            if event.kind == kind:
                assert event.problem
                return event.text
    raise AssertionError(f"no {kind}")


async def test_two_processes_with_one_wallet_are_left_out_until_one_stops(tmp_path: Path) -> None:
    async with open_fleet(tmp_path) as fleet:
        await thirds(fleet)
        await fleet.start_node("m2", "10-19")
        first = fleet.listens_at("m")
        fleet.processes["m, first"] = fleet.processes.pop("m")
        await fleet.start_node("m", "10-19", wait=False)
        second = fleet.listens_at("m")

        async def is_quarantined() -> bool:
            return (await fleet.nodes())["m"].health == "quarantined"

        async def is_back() -> bool:
            node = (await fleet.nodes())["m"]
            return (node.health, node.state, node.url) == ("ok", "ready", second)

        await until(is_quarantined)
        assert first in (text := await told(fleet, "node.quarantined")) and second in text
        for number in range(4):
            assert (await listen(fleet.client, f"neither {number}", 3)).text == whole(f"neither {number}", 3)
        spare = (await fleet.nodes())["m2"].node_id
        assert {call.attempts[-1].hops[1].node_id for call in (await fleet.client.calls(limit=4)).calls} == {spare}
        await fleet.kill("m, first")
        await until(is_back)
        assert "Two processes have the wallet" in fleet.log("m")
