"""Leases under a clock that the test turns."""

from __future__ import annotations

import pytest

from daemons.tracker.fleet import EPOCH_S, GRACE_S, REMEMBER_S, Change, Fleet
from daemons.tracker.twins import QUIET_S, WITHIN_S
from meshnet.domain.errors import Conflict, EpochChanged, InvalidRequest, NotFound
from meshnet.domain.ids import NodeId, Wallet
from meshnet.wire.messages import HeartbeatRequest
from tests.tracker.running import MODEL, claim, node_id_of, public_key


class ManualClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Watched:
    """A fleet, its clock, and what it told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fleet = Fleet(self.clock)
        self.told: list[Change] = []
        self.fleet.listen(self.told.append)

    @property
    def kinds(self) -> list[tuple[str, bool]]:
        return [(change.kind, change.topology) for change in self.told]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_registration_gives_node_id_and_first_epoch(watched: Watched) -> None:
    lease = watched.fleet.register(claim(1, 0, 14))
    assert (lease.node.node_id, lease.node.epoch) == (node_id_of(1, 0, 14), 1)
    assert watched.kinds == [("joined", True)]


def test_wallet_must_be_the_keys_own(watched: Watched) -> None:
    with pytest.raises(InvalidRequest) as caught:
        watched.fleet.register(claim(1, 0, 14, public_key=public_key(2)))
    assert caught.value.param == "wallet" and not watched.fleet.nodes()


@pytest.mark.parametrize(("start", "end"), [(0, 30), (20, 10)])
def test_shard_must_lie_in_the_model(watched: Watched, start: int, end: int) -> None:
    with pytest.raises(InvalidRequest, match="no shard"):
        watched.fleet.register(claim(1, start, end))


def test_epoch_rises_and_topology_does_not_when_the_same_registers_again(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    again = watched.fleet.register(claim(1, 0, 14, url="http://127.0.0.1:10", boot="another-boot"))
    assert again.node.epoch == 2 and again.node.url == "http://127.0.0.1:10"
    assert watched.kinds == [("joined", True), ("changed", False)]
    assert len(watched.fleet.nodes()) == 1


def test_another_shard_of_a_wallet_replaces_its_lease(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    watched.fleet.register(claim(1, 15, 29))
    assert [node.node_id for node in watched.fleet.nodes()] == [node_id_of(1, 15, 29)]
    assert watched.kinds == [("joined", True), ("left", True), ("joined", True)]


def test_epoch_goes_on_after_a_leave(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    watched.fleet.leave(node_id_of(1, 0, 14), epoch=1)
    assert watched.fleet.register(claim(1, 0, 14)).node.epoch == 2


def test_leave_of_an_older_epoch_ends_nothing(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    watched.fleet.register(claim(1, 0, 14, boot="restarted-node"))
    with pytest.raises(NotFound):
        watched.fleet.leave(node_id_of(1, 0, 14), epoch=1)
    assert len(watched.fleet.nodes()) == 1


def test_heartbeat_updates_what_routing_reads(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14, state="loading"))
    beat = HeartbeatRequest(
        epoch=1, state="ready", queue_depth=3, kv_free_bytes=7, benchmark_tokens_per_sec=42.0, tail_layers=5.5
    )
    node = watched.fleet.heartbeat(node_id_of(1, 0, 14), beat).node
    assert (node.state, node.queue_depth, node.kv_free_bytes, node.benchmark_tokens_per_sec) == ("ready", 3, 7, 42.0)
    assert watched.kinds == [("joined", True), ("changed", False)]
    later = watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=1)).node
    assert (later.benchmark_tokens_per_sec, later.tail_layers) == (42.0, 5.5)
    again = watched.fleet.register(claim(1, 0, 14, tail_layers=5.5)).node
    assert again.tail_layers == 5.5, "a registration says it again"


def test_heartbeat_without_a_lease_or_of_another_epoch_is_refused(watched: Watched) -> None:
    with pytest.raises(NotFound) as caught:
        watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=1))
    assert caught.value.code == "unknown_lease"
    watched.fleet.register(claim(1, 0, 14))
    with pytest.raises(EpochChanged):
        watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=9))


WALLET = claim(1, 0, 14).wallet


def fight(watched: Watched, changes: int, every_s: float = 3.0) -> None:
    """Two processes take the lease from each other so many times, the first one having it before."""
    watched.fleet.register(claim(1, 0, 14, boot="boot-of-first"))
    for number in range(changes):
        watched.clock.time += every_s
        boot, port = [("boot-of-second", 11), ("boot-of-first", 9)][number % 2]
        watched.fleet.register(claim(1, 0, 14, boot=boot, url=f"http://127.0.0.1:{port}"))


def test_two_processes_with_one_wallet_are_both_left_out_and_named(watched: Watched) -> None:
    fight(watched, 3)
    assert not watched.fleet.is_quarantined(WALLET)
    watched.clock.time += 3.0
    with pytest.raises(Conflict, match=r"127\.0\.0\.1:9 and http://127\.0\.0\.1:11") as caught:
        watched.fleet.register(claim(1, 0, 14, boot="boot-of-first"))
    assert caught.value.code == "wallet_in_use"
    assert watched.fleet.is_quarantined(WALLET) and [n.state for n in watched.fleet.nodes()] == ["draining"]
    assert [c.kind for c in watched.told].count("quarantined") == 1 and not watched.told[-1].topology
    with pytest.raises(Conflict) as beat:
        watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=4))
    assert beat.value.code == "wallet_in_use"


def test_quarantine_lasts_while_both_ask_and_ends_when_one_stops(watched: Watched) -> None:
    with pytest.raises(Conflict):
        fight(watched, 4)
    for _ in range(30):
        watched.clock.time += 4.0
        for boot in ("boot-of-first", "boot-of-second"):
            with pytest.raises(Conflict):
                watched.fleet.register(claim(1, 0, 14, boot=boot))
        assert watched.fleet.tick() == [], "it is shown as long as they fight"
    began = watched.clock.time
    while watched.fleet.is_quarantined(WALLET):
        watched.clock.time += 4.0
        try:
            watched.fleet.register(claim(1, 0, 14, boot="boot-of-second"))
        except Conflict:
            assert watched.clock.time - began <= QUIET_S
    assert [node.state for node in watched.fleet.nodes()] == ["ready"]
    fight(watched, 1)
    assert not watched.fleet.is_quarantined(WALLET), "an old quarrel is forgotten"


def test_slow_changes_and_crash_loops_are_no_fight(watched: Watched) -> None:
    fight(watched, 20, every_s=WITHIN_S / 2 + 1)
    for number in range(20):
        watched.clock.time += 1.0
        watched.fleet.register(claim(1, 0, 14, boot=f"crashed-{number}"))
    assert not watched.fleet.is_quarantined(WALLET)


def test_clock_that_is_off_is_said_once_until_it_is_heard_again(watched: Watched) -> None:
    wallet = watched.fleet.register(claim(1, 0, 14)).node.wallet
    watched.fleet.clock_off(wallet, 70.0)
    assert len(watched.told) == 1, "it is heard in time: somebody sends an old request of its again"
    watched.clock.time += watched.fleet.heartbeat_s + GRACE_S
    for _ in range(3):
        watched.fleet.clock_off(wallet, -3600.4)
    assert [c.kind for c in watched.told] == ["joined", "unheard"] and not watched.told[-1].topology
    assert watched.told[-1].reason == "its clock is 3600 s ahead of the tracker's: set the one that is wrong"
    watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=1))
    watched.fleet.clock_off(wallet, 3600.4)
    assert len(watched.told) == 2
    watched.clock.time += watched.fleet.heartbeat_s + GRACE_S
    watched.fleet.clock_off(wallet, 3600.4)
    assert "3600 s behind" in watched.told[-1].reason
    watched.fleet.clock_off(Wallet(claim(2, 0, 14).wallet), 3600.0)
    assert len(watched.told) == 3, "of whom nobody knows, nothing is said"


def test_lease_of_two_that_both_stopped_ends(watched: Watched) -> None:
    with pytest.raises(Conflict):
        fight(watched, 4)
    watched.clock.time += 100.0
    assert len(watched.fleet.tick()) == 1 and not watched.fleet.is_quarantined(WALLET)
    assert watched.fleet.register(claim(1, 0, 14, boot="another-boot")).node.state == "ready"


@pytest.mark.parametrize(
    ("silent_s", "suspect", "live"),
    [(5.0, False, True), (10.9, False, True), (11.1, True, True), (15.9, True, True), (16.1, True, False)],
)
def test_silence_makes_suspect_at_two_and_ends_at_three_missed(
    watched: Watched, silent_s: float, suspect: bool, live: bool
) -> None:
    node = watched.fleet.register(claim(1, 0, 14)).node
    watched.clock.time += silent_s
    assert watched.fleet.is_suspect(node) is suspect
    watched.fleet.tick()
    assert bool(watched.fleet.nodes()) is live
    assert (("left", True) in watched.kinds) is not live


def test_heartbeats_keep_a_lease_for_hours(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    for _ in range(1000):
        watched.clock.time += 5.0 + GRACE_S
        watched.fleet.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=1))
        assert watched.fleet.tick() == []


def test_model_is_remembered_for_a_while_after_its_last_node(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    watched.fleet.leave(node_id_of(1, 0, 14))
    assert watched.fleet.model_keys() == [MODEL] and watched.fleet.knows(MODEL)
    watched.clock.time += REMEMBER_S + 1
    assert watched.fleet.model_keys() == [] and not watched.fleet.knows(MODEL)


def test_names_and_models_of_live_nodes_are_found_by_key(watched: Watched) -> None:
    watched.fleet.register(claim(1, 0, 14))
    assert watched.fleet.knows(MODEL) and not watched.fleet.knows("another")
    assert watched.fleet.name_of(NodeId(node_id_of(1, 0, 14))) == "n1"
    assert watched.fleet.name_of(NodeId(node_id_of(2, 0, 14))) == ""


def test_wallets_and_models_that_are_long_gone_leave_nothing_behind(watched: Watched) -> None:
    fleet = watched.fleet
    for number in range(1, 9):
        node = fleet.register(claim(number, 0, 14, model_key=f"made-up-{number}"), "192.0.2.7").node
        fleet.leave(node.node_id)
    assert fleet.last_seen("made-up-1") is not None
    watched.clock.time += REMEMBER_S + 1
    fleet.tick()
    assert fleet.last_seen("made-up-1") is None
    assert fleet.register(claim(1, 0, 14)).node.epoch == 2, "of a wallet that left lately epochs rise"
    watched.clock.time += EPOCH_S
    for number in (1, 2):
        fleet.tick()
        assert fleet.register(claim(number, 0, 14)).node.epoch == (3 if number == 1 else 1)
    kept = (fleet._epochs, fleet._addresses, fleet._ended_at, fleet._departed)
    assert [len(each) for each in kept] == [2, 2, 0, 1]


def test_address_of_a_registration_that_is_refused_does_not_count(watched: Watched) -> None:
    fleet = watched.fleet
    fleet.max_per_address = 2
    with pytest.raises(Conflict):
        fight(watched, 4)
    with pytest.raises(Conflict):
        fleet.register(claim(1, 0, 14, boot="another-boot"), "192.0.2.7")
    for number in (2, 3):
        fleet.register(claim(number, 0, 14), "192.0.2.7")
