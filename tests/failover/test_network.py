"""Bad networks between healthy daemons: slow, cut, half-open, reset, partitioned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemons.kit.tasks import Tasks
from meshnet.client.sse import UsageReport
from tests.failover.fault_proxy import Weather
from tests.failover.fleet import Listening, listen, whole
from tests.failover.live import LiveMesh, LiveNode, open_live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

QUICK = {"timeout_between_tokens": 0.4, "timeout_connect": 1.0}


async def thirds(mesh: LiveMesh, **how: bool | float) -> list[LiveNode]:
    shards = {"h1": "0-9", "m1": "10-19", "m2": "10-19", "t1": "20-29"}
    return [await mesh.add(name, shard, **how) for name, shard in shards.items()]  # type: ignore[arg-type]


async def test_slow_line_is_slower_and_no_death(tmp_path: Path) -> None:
    """300 ms round trips with as much jitter: every answer whole, nobody blamed."""
    async with open_live(tmp_path) as mesh:
        nodes = await thirds(mesh, behind_proxy=True)
        for node in nodes:
            assert node.door is not None
            node.door.weather = Weather(latency_s=0.15, jitter_s=0.05, slice_bytes=4000)
        prompts = [f"slow line number {number}" for number in range(50)]
        answers = await asyncio.gather(*(listen(mesh.client, prompt, 4) for prompt in prompts))
        assert [told.text for told in answers] == [whole(prompt, 4) for prompt in prompts]
        calls = (await mesh.client.calls()).calls
        assert all(call.outcome == "ok" and not call.reroutes for call in calls)
        assert all(node.health == "ok" for node in (await mesh.client.nodes()).nodes)
        await mesh.all_free()


async def test_line_too_thin_for_the_prompt_is_a_deadline_and_no_hang(tmp_path: Path) -> None:
    """10 kB/s to the only tail: the call ends with an error within its deadline."""
    async with open_live(tmp_path, timeout_call=3.0) as mesh:
        await mesh.add("h", "0-14")
        tail = await mesh.add("t", "15-29", behind_proxy=True)
        assert tail.door is not None
        tail.door.weather = Weather(bytes_per_s=10_000, slice_bytes=1000)
        with pytest.raises(Exception, match=r"within|no other route|silent"):
            await listen(mesh.client, " ".join(f"word{n}" for n in range(1500)), 4)
        tail.door.heal()
        await mesh.all_free(20.0)


@pytest.mark.parametrize("mode", ["black_hole", "half_open", "reset"])
async def test_line_that_breaks_in_mid_stream_is_left_for_another(tmp_path: Path, mode: str) -> None:
    tasks = Tasks("test")
    async with open_live(tmp_path, **QUICK) as mesh:
        await thirds(mesh, behind_proxy=True, step_s=0.01)
        listening = Listening(mesh.client, "the line breaks", 60, tasks)
        victim_id = (await listening.token(5)).victim(1)
        victim = next(node for node in mesh.nodes.values() if node.node_id == victim_id)
        assert victim.door is not None
        if mode == "reset":
            victim.door.reset()
        else:
            victim.door.weather = Weather(mode)  # type: ignore[arg-type]
        told = await listening.end()
        assert told.text == whole("the line breaks", 60)
        assert told.usage == UsageReport(3, 60)
        call = (await mesh.client.calls()).calls[0]
        # Rows flow one way: a line that carries no answers may not be missed at all.
        assert call.reroutes >= 1 or mode == "half_open"
        culprits = {attempt.culprit for attempt in call.attempts[:-1]}
        # The middle's line to the tail is the tail's door: whoever is behind a broken edge may be named.
        assert culprits <= {victim.node_id, mesh.nodes["t1"].node_id}
        victim.door.heal()
        victim.door.reset()
        await mesh.all_free(20.0)
    await tasks.close()


async def test_partition_from_the_tracker_keeps_running_streams_and_heals(tmp_path: Path) -> None:
    """The middle cannot reach the tracker, but its neighbours can reach it: its stream runs on, it takes no new calls
    once suspect while another holds its layers, and it is back without a restart."""
    tasks = Tasks("test")
    async with open_live(tmp_path) as mesh:
        mesh.running.tracker.fleet.heartbeat_s = 0.3  # Told to the nodes as they register.
        nodes = [
            await mesh.add(name, shard, leash=True, step_s=0.02)
            for name, shard in (("h1", "0-9"), ("m1", "10-19"), ("m2", "10-19"), ("t1", "20-29"))
        ]
        listening = Listening(mesh.client, "partition", 100, tasks)
        middle_id = (await listening.token(3)).victim(1)
        middle = next(node for node in nodes if node.node_id == middle_id)
        assert middle.way_out is not None
        middle.way_out.weather = Weather("black_hole")
        await mesh.until(lambda: mesh.suspects() == [middle.name] or mesh.lease(middle) is None)
        for number in range(4):
            told = await listen(mesh.client, f"meanwhile {number}", 3)
            assert told.victim(1) != middle_id
        assert (await listening.end()).text == whole("partition", 100)
        assert not (await mesh.client.call((await mesh.client.calls()).calls[-1].call_id)).reroutes
        middle.way_out.heal()
        middle.way_out.reset()
        await mesh.until(lambda: mesh.lease(middle) is not None and not mesh.suspects())
        await mesh.all_free()
    await tasks.close()
