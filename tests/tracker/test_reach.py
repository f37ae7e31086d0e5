"""Dial-back: who cannot be dialled gets no calls and is told; a relayed node's direct way is found."""

from __future__ import annotations

from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.reach import AGAIN_S, RECHECK_S, Reach
from meshnet.domain.errors import NodeFailed
from meshnet.domain.ids import NodeId
from meshnet.wire.messages import RegisterRequest
from tests.tracker.running import claim, node_id_of

DIRECT = "http://192.0.2.1:7071"
RELAYED = f"relay://192.0.2.9:7091/{'a' * 20}"


class Street:
    """A fleet under a clock, and the addresses that answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet = Fleet(lambda: self.now)
        self.open: set[str] = set()
        self.dialled: list[str] = []
        self.told: list[Change] = []
        self.reach = Reach(self.fleet, self._dial, lambda: self.now)

    async def _dial(self, node_id: NodeId, url: str) -> None:
        self.dialled.append(url)
        if url not in self.open:
            raise NodeFailed(f"nobody at {url}", node_id=node_id)

    def register(self, request: RegisterRequest) -> None:
        self.fleet.register(request)
        self.fleet.listen(self.told.append)

    @property
    def node(self):
        return self.fleet.nodes()[0]


async def test_a_node_is_routable_once_it_was_dialled() -> None:
    street = Street()
    street.open.add(DIRECT)
    street.register(claim(1, 0, 29, DIRECT))
    assert street.reach.is_blocked(street.node) and not street.reach.is_unreachable(street.node)
    await street.reach.tick()
    assert not street.reach.is_blocked(street.node)
    assert [change.reason for change in street.told] == ["can be dialled"], "calls that wait hear of it"
    await street.reach.tick()
    street.now += RECHECK_S
    await street.reach.tick()
    assert len(street.dialled) == 2


async def test_who_cannot_be_dialled_gets_no_calls_is_told_and_tried_again() -> None:
    street = Street()
    street.register(claim(1, 0, 29, DIRECT))
    await street.reach.tick()
    assert street.reach.is_blocked(street.node) and street.reach.is_unreachable(street.node)
    street.open.add(DIRECT)
    street.now += AGAIN_S
    await street.reach.tick()
    assert not street.reach.is_blocked(street.node)


async def test_another_address_is_another_question() -> None:
    street = Street()
    street.open.add(DIRECT)
    street.register(claim(1, 0, 29, DIRECT))
    await street.reach.tick()
    street.register(claim(1, 0, 29, "http://192.0.2.2:7071"))
    assert street.reach.is_blocked(street.node)


async def test_a_relayed_node_is_routable_and_its_direct_way_is_found() -> None:
    street = Street()
    street.register(claim(1, 0, 29, RELAYED, direct_url=DIRECT))
    assert not street.reach.is_blocked(street.node)
    await street.reach.tick()
    (lease,) = street.fleet.leases()
    assert not street.reach.has_direct_way(lease)
    street.open.add(DIRECT)
    street.now += RECHECK_S
    await street.reach.tick()
    assert street.reach.has_direct_way(lease)
    assert node_id_of(1, 0, 29) == lease.node.node_id


async def test_a_relayed_node_without_a_direct_way_is_not_dialled() -> None:
    street = Street()
    street.register(claim(1, 0, 29, RELAYED))
    await street.reach.tick()
    assert street.dialled == []
