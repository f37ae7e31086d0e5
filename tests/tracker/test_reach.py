"""Dial-back: who cannot be dialled gets no calls and is told; a relayed node's direct way is found."""

from __future__ import annotations

from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.reach import AGAIN_S, RECHECK_S, WITNESSES, Reach
from meshnet.domain.errors import NodeFailed
from meshnet.domain.ids import NodeId, wallet_of
from meshnet.domain.nodes import Node
from meshnet.wire.messages import Dialled, HeartbeatRequest, RegisterRequest
from tests.tracker.running import claim, node_id_of, public_key

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
        self.fleet.listen(self.told.append)
        self.closed_to_others: set[str] = set()
        self.liars: set[str] = set()
        self.silent = False
        self.asked: list[tuple[str, str]] = []
        self.reach = Reach(self.fleet, self._dial, self._ask, lambda: self.now)

    async def _dial(self, node_id: NodeId, url: str) -> None:
        self.dialled.append(url)
        if url not in self.open:
            raise NodeFailed(f"nobody at {url}", node_id=node_id)

    def later(self, seconds: float) -> None:
        """Everybody is heard of meanwhile."""
        self.now += seconds + 0.5
        for node in self.fleet.nodes():
            self.fleet.heartbeat(node.node_id, HeartbeatRequest(epoch=node.epoch))

    async def _ask(self, witness: Node, node_id: NodeId, url: str) -> Dialled | None:
        self.asked.append((witness.node_id, url))
        if self.silent:
            return None
        works = url not in self.closed_to_others and witness.wallet not in self.liars
        return Dialled(node_id, url, works, "" if works else "no route to host")

    def register(self, request: RegisterRequest) -> None:
        self.fleet.register(request)

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
    assert [change.reason for change in street.told][1:] == ["can be dialled"], "calls that wait hear of it"
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


FAR = "http://192.0.2.{}:7071"


async def served(street: Street, *numbers: int) -> None:
    """Nodes on machines of their own that can be dialled, each found so by itself."""
    for number in numbers:
        street.now += 0.1
        street.open.add(FAR.format(number))
        street.register(claim(number, 0, 29, FAR.format(number)))
        await street.reach.tick()


def wallet_of_number(number: int) -> str:
    return wallet_of(bytes.fromhex(public_key(number)))


def node(street: Street, number: int) -> Node:
    lease = street.fleet.get(node_id_of(number, 0, 29))
    assert lease is not None
    return lease.node


async def test_a_node_that_another_cannot_reach_is_left_out_with_the_reason() -> None:
    street = Street()
    await served(street, 2)
    assert street.asked == [], "nobody is there to ask: the tracker's own result stands"
    street.closed_to_others.add(FAR.format(3))
    await served(street, 3)
    why = street.reach.why_blocked(node(street, 3))
    assert "other nodes cannot (n2)" in why and "no route to host" in why
    assert street.reach.is_unreachable(node(street, 3)), "it is told, so that it goes to a relay"
    assert street.told[-1].reason == why
    street.closed_to_others.clear()
    street.later(AGAIN_S)
    await street.reach.tick()
    assert not street.reach.is_blocked(node(street, 3))


async def test_one_that_reaches_it_is_enough_and_questions_go_round() -> None:
    street = Street()
    await served(street, 2, 3, 4, 5, 6)
    street.liars |= {wallet_of_number(2), wallet_of_number(3)}
    street.asked.clear()
    await served(street, 7)
    assert not street.reach.is_blocked(node(street, 7)) and len(street.asked) == WITNESSES
    first = {witness for witness, _ in street.asked}
    street.asked.clear()
    await served(street, 8)
    assert {witness for witness, _ in street.asked} != first


async def test_a_silent_witness_speaks_for_nobody_and_is_asked_again() -> None:
    street = Street()
    await served(street, 2)
    street.silent = True
    street.closed_to_others.add(FAR.format(3))
    await served(street, 3)
    assert not street.reach.is_blocked(node(street, 3))
    street.silent = False
    street.later(AGAIN_S)
    await street.reach.tick()
    assert street.reach.is_blocked(node(street, 3))


async def test_nodes_that_come_together_are_witnesses_soon() -> None:
    """The first one of a look has nobody to ask."""
    street = Street()
    for number in (2, 3):
        street.open.add(FAR.format(number))
        street.register(claim(number, 0, 29, FAR.format(number)))
    await street.reach.tick()
    street.later(AGAIN_S)
    await street.reach.tick()
    assert {url for _, url in street.asked} == {FAR.format(2), FAR.format(3)}
    street.later(AGAIN_S)
    street.asked.clear()
    await street.reach.tick()
    assert street.asked == [], "the next look is minutes away"


async def test_who_is_no_witness() -> None:
    """The same machine, a node that is silent or cannot be dialled itself; the tracker's no needs none."""
    street = Street()
    await served(street, 2)
    street.register(claim(3, 0, 29, FAR.format(2)))
    await street.reach.tick()
    assert street.asked == [], "its own machine says nothing about the line to it"
    street.register(claim(4, 0, 29, FAR.format(4)))
    await street.reach.tick()
    assert street.asked == [] and "nobody at" in street.reach.why_blocked(node(street, 4))
    street.now += 12
    street.register(claim(5, 0, 29, FAR.format(5)))
    street.open.add(FAR.format(5))
    await street.reach.tick()
    assert street.asked == [], "nodes that missed heartbeats are not asked"


async def test_a_relayed_node_is_a_witness_and_comes_back_only_where_another_reaches_it() -> None:
    street = Street()
    street.register(claim(1, 0, 29, RELAYED, direct_url=DIRECT))
    street.open.add(DIRECT)
    street.closed_to_others.add(DIRECT)
    await served(street, 2)
    assert street.asked == [(node_id_of(1, 0, 29), FAR.format(2))]
    street.later(RECHECK_S)
    await street.reach.tick()
    lease = street.fleet.get(node_id_of(1, 0, 29))
    assert lease is not None and not street.reach.has_direct_way(lease) and not street.reach.is_blocked(lease.node)
