"""Dial-back: who cannot be dialled gets no calls and is told; a relayed node's direct way is found."""

from __future__ import annotations

from daemons.tracker.fleet import Change, Fleet
from daemons.tracker.reach import AGAIN_S, AT_ONCE, LOOK_S, RECHECK_S, WITNESSES, Reach
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


async def test_nodes_that_move_at_each_look_starve_nobody() -> None:
    """Whatever their ids are, more of them than are dialled at once."""
    street = Street()
    movers = range(2, 2 + 2 * AT_ONCE)
    stays = max((1, *movers), key=lambda number: node_id_of(number, 0, 29))
    street.open.add(DIRECT)
    for look in range(6):
        for number in movers:
            if number != stays:
                street.register(claim(number, 0, 29, f"http://198.51.100.{number}:{1000 + look}"))
        if look == 0:
            street.register(claim(stays, 0, 29, DIRECT))
        await street.reach.tick()
        street.later(LOOK_S)
    lease = street.fleet.get(node_id_of(stays, 0, 29))
    assert lease is not None and not street.reach.is_blocked(lease.node)


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
    await served(street, 3)
    street.closed_to_others.add(FAR.format(4))
    await served(street, 4)
    why = street.reach.why_blocked(node(street, 4))
    assert all(name in why for name in ("other nodes cannot (", "n2", "n3", "no route to host"))
    assert street.reach.is_unreachable(node(street, 4)), "it is told, so that it goes to a relay"
    assert street.told[-1].reason == why
    street.closed_to_others.clear()
    street.later(AGAIN_S)
    await street.reach.tick()
    assert not street.reach.is_blocked(node(street, 4))


async def test_one_liar_shuts_nobody_out_after_a_restart() -> None:
    """Behind a relay it is routable before anybody was dialled, so it is the first who may be asked."""
    street = Street()
    street.liars.add(wallet_of_number(9))
    street.register(claim(9, 0, 29, RELAYED))
    await served(street, *range(1, 7))
    for _ in range(3):
        street.later(AGAIN_S)
        await street.reach.tick()
    assert [street.reach.why_blocked(node(street, number)) for number in range(1, 7)] == [""] * 6


async def test_liars_shut_nobody_out_for_longer_than_a_round() -> None:
    """Two that are there first have their way for 15 s: whom the tracker dialled is asked next, blocked or not."""
    street = Street()
    for number, seat in ((8, "a"), (9, "b")):
        street.liars.add(wallet_of_number(number))
        street.register(claim(number, 0, 29, f"relay://192.0.2.9:7091/{seat * 20}"))
    await served(street, *range(1, 7))
    street.later(AGAIN_S)
    await street.reach.tick()
    assert [street.reach.why_blocked(node(street, number)) for number in range(1, 7)] == [""] * 6


async def test_one_no_is_not_enough_and_a_machine_speaks_once() -> None:
    street = Street()
    street.closed_to_others.add(FAR.format(3))
    await served(street, 2)
    street.register(claim(5, 0, 29, "http://192.0.2.2:7072"))
    street.open.add("http://192.0.2.2:7072")
    await street.reach.tick()
    await served(street, 3)
    assert len(street.asked) == 1 and not street.reach.is_blocked(node(street, 3)), "two nodes of one machine are one"


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
    await served(street, 2, 3)
    street.silent = True
    street.closed_to_others.add(FAR.format(4))
    await served(street, 4)
    assert not street.reach.is_blocked(node(street, 4))
    street.silent = False
    street.later(AGAIN_S)
    await street.reach.tick()
    assert street.reach.is_blocked(node(street, 4))


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
