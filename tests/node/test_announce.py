"""The lease: taken, kept, taken again, given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import pytest

from daemons.node.announce import BACKOFF_MOST_S, Advertised, Announcer
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.node.wallet import open_wallet
from meshnet.domain.engine import EngineSpeed
from meshnet.domain.errors import (
    EpochChanged,
    Forbidden,
    InvalidRequest,
    MeshnetError,
    NodeFailed,
    NotFound,
    StartError,
)
from meshnet.domain.ids import make_node_id
from meshnet.domain.nodes import HardwareProfile
from meshnet.domain.shards import Shard
from meshnet.wire.messages import HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse


class ScriptedTracker:
    def __init__(self) -> None:
        self.registered: list[RegisterRequest] = []
        self.beats: list[HeartbeatRequest] = []
        self.left: list[tuple[str, int]] = []
        self.fail: MeshnetError | None = None

    async def register(self, request: RegisterRequest) -> RegisterResponse:
        self._fail()
        self.registered.append(request)
        return RegisterResponse(
            node_id=f"{request.wallet}.0-14",
            epoch=len(self.registered),
            heartbeat_interval_s=5.0,
            tracker_id="t",
            tracker_boot="boot-of-t",
        )

    async def heartbeat(self, node_id: str, request: HeartbeatRequest) -> HeartbeatResponse:
        self._fail()
        self.beats.append(request)
        return HeartbeatResponse(epoch=request.epoch)

    async def leave(self, node_id: str, epoch: int) -> None:
        self.left.append((node_id, epoch))

    def _fail(self) -> None:
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error


@pytest.fixture
async def lease(tmp_path: Path) -> AsyncIterator[tuple[Announcer, ScriptedTracker, Node]]:
    wallet = open_wallet(tmp_path)
    shard = Shard(0, 14)
    holding = Holding(
        make_node_id(wallet.wallet, shard), "boot-0001", "fake", "0123456789abcdef", shard, 30, 8, 2048, "float32"
    )
    async with aiohttp.ClientSession() as http:
        node, tracker = Node(Identity(holding), http), ScriptedTracker()
        said = Advertised("n1", "http://127.0.0.1:7071", HardwareProfile(), 1 << 20, 0, 1000, 1000)
        yield Announcer(node, tracker, wallet, said, lambda: 400, Random(1)), tracker, node
        await node.close()


async def test_loading_is_a_state_of_its_own_and_ready_comes_with_the_speed(lease) -> None:
    announcer, tracker, node = lease
    await announcer.tick()
    assert tracker.registered[0].state == "loading"
    assert node.identity.epoch == 1
    await announcer.tick()
    assert (tracker.beats[0].loading_done_bytes, tracker.beats[0].loading_total_bytes) == (400, 1000)
    node.ready = True
    announcer.measured(EngineSpeed(12.0, 40.0, 99.0))
    await announcer.tick()
    assert (tracker.beats[1].state, tracker.beats[1].benchmark_tokens_per_sec) == ("ready", 12.0)


async def test_new_lease_knows_every_speed_that_the_lost_one_knew(lease) -> None:
    announcer, tracker, _ = lease
    await announcer.tick()
    announcer.measured(EngineSpeed(12.0, 40.0, 99.0, extra={"tail_layers": 2.5}))
    tracker.fail = NotFound("no lease", code="unknown_lease")
    await announcer.tick()
    again = tracker.registered[1]
    assert (again.benchmark_tokens_per_sec, again.prefill_tokens_per_sec, again.tail_layers) == (12.0, 99.0, 2.5)


@pytest.mark.parametrize("error", [NotFound("no lease", code="unknown_lease"), EpochChanged("another's")])
async def test_a_lost_lease_is_taken_again_at_once(lease, error: MeshnetError) -> None:
    announcer, tracker, node = lease
    await announcer.tick()
    tracker.fail = error
    await announcer.tick()
    assert len(tracker.registered) == 2
    assert (node.identity.epoch, announcer.registered) == (2, True)


async def test_a_tracker_that_is_away_is_asked_again_within_seconds(lease) -> None:
    announcer, tracker, _ = lease
    waits = []
    for _ in range(12):
        tracker.fail = NodeFailed("connection refused")
        await announcer.tick()
        waits.append(announcer.delay_s())
    assert max(waits) <= BACKOFF_MOST_S and len(set(waits)) == 12
    await announcer.tick()
    assert announcer.registered
    assert 4.0 <= announcer.delay_s() <= 5.0


async def test_leaving_gives_the_lease_back_and_takes_no_other(lease) -> None:
    announcer, tracker, node = lease
    await announcer.tick()
    await announcer.leave()
    await announcer.tick()
    assert tracker.left == [(node.identity.node_id, 1)]
    assert len(tracker.registered) == 1


REFUSALS = [
    (Forbidden("This needs an API key.", code="unauthorized"), "MESHNET_JOIN_TOKEN"),
    (Forbidden("Key k has scope chat; this needs join.", code="wrong_scope"), "meshnet keys create nodes --scope join"),
    (InvalidRequest("A node cannot be at 10.0.0.1: it is private.", code="bad_address"), "it is private"),
]


@pytest.mark.parametrize(("error", "said"), REFUSALS)
async def test_refusal_of_the_first_registration_ends_the_start(lease, error: MeshnetError, said: str) -> None:
    announcer, tracker, _ = lease
    tracker.fail = error
    with pytest.raises(StartError, match=said) as caught:
        await announcer.run()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(("error", "said"), REFUSALS)
async def test_node_that_was_registered_once_outlives_a_refusal(lease, error: MeshnetError, said: str) -> None:
    announcer, tracker, _ = lease
    await announcer.tick()
    tracker.fail = NotFound("no lease", code="unknown_lease")
    await announcer.tick()
    announcer.registered = False
    tracker.fail = error
    await announcer.tick()
    assert not announcer.registered
    await announcer.tick()
    assert announcer.registered
