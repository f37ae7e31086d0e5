"""Whose word this node takes, and the tickets it holds: no frame starts work here that a tracker did not sign for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from meshnet.domain.errors import Forbidden
from meshnet.domain.ids import Wallet, parse_node_id
from meshnet.domain.tickets import LINK_TICKET_S, Ask, LinkTicket, RouteTicket, Sender, check_hop, check_link
from meshnet.wire.hello import wallet_in
from meshnet.wire.messages import Generate, Hello, HopMessage, Open
from meshnet.wire.tickets import open_ticket

MAX_TICKETS = 1024
"""Peers whose latest ticket is kept, for links through relays: more than a node's routes ever name."""


class Trust:
    """``required``: work without a ticket is refused (every profile but local). ``wall`` is Unix seconds."""

    def __init__(self, wall: Callable[[], float], *, required: bool) -> None:
        self._wall = wall
        self._required = required
        self._trackers: frozenset[Wallet] = frozenset()
        self._tickets: OrderedDict[Wallet, tuple[str, float]] = OrderedDict()

    def trackers(self) -> frozenset[Wallet]:
        """Wallets of the trackers that we registered at."""
        return self._trackers

    def take_tracker(self, wallet: str) -> None:
        """The tracker we were told to join says that this is its wallet."""
        if wallet:
            self._trackers |= {Wallet(wallet)}

    def admit(self, ask: Generate | Open, hop: HopMessage, peer: Hello, sender: Sender) -> None:
        """Raises Forbidden (the code says which rule) or EpochChanged unless the ticket of ``ask`` lets ``peer`` have
        this node do ``hop``."""
        if not self._required and not (ask.ticket and self._trackers):
            return
        if not ask.ticket:
            raise Forbidden(f"{ask.call_id} brings no ticket of a tracker.", code="no_ticket")
        ticket = open_ticket(ask.ticket, self._trackers)
        if isinstance(ticket, LinkTicket):
            raise Forbidden("A ticket for a link starts no work.", code="bad_ticket")
        wanted = Ask(ask.call_id, ask.attempt, ask.model_key, ask.revision, hop.start_layer, hop.end_layer)
        check_hop(ticket, hop.node_id, wallet_in(peer) or Wallet(""), sender, wanted, self._wall())
        if [(h.node_id, h.start_layer, h.end_layer) for h in ask.hops] != [
            (h.node_id, h.start_layer, h.end_layer) for h in ticket.hops
        ]:
            raise Forbidden(f"The hops of {ask.call_id} are not its ticket's.", code="ticket_hop")
        self._keep(ask.ticket, ticket)

    def opens(self, text: str, own: Wallet) -> bool:
        """Whether a tracker of ours lets somebody come to ``own``."""
        try:
            ticket = open_ticket(text, self._trackers)
            if isinstance(ticket, RouteTicket):
                return False
            check_link(ticket, ticket.caller, own, self._wall())
        except Forbidden:
            return False
        return True

    def ticket_for(self, wallet: Wallet) -> str | None:
        """The latest ticket by which we may link to this peer, if it is still good."""
        text, expires = self._tickets.get(wallet, ("", 0.0))
        return text if text and self._wall() <= expires else None

    def keep_link(self, target: str, text: str) -> None:
        """A ticket for links alone, fresh from our tracker: for fetching another node's files."""
        self._remember(Wallet(target), text, self._wall() + LINK_TICKET_S)

    def _keep(self, text: str, ticket: RouteTicket) -> None:
        for hop in ticket.hops:
            self._remember(parse_node_id(hop.node_id)[0], text, ticket.expires)

    def _remember(self, wallet: Wallet, text: str, expires: float) -> None:
        self._tickets[wallet] = (text, expires)
        self._tickets.move_to_end(wallet)
        while len(self._tickets) > MAX_TICKETS:
            self._tickets.popitem(last=False)
