"""Tickets: what a tracker lets others do, and the rules by which a node or a relay checks one.

A **route ticket** names the hops of one attempt of one call; a node serves only what its ticket says, from the peer it
names. A **link ticket** lets one peer open a link to one node, through a relay or not. ``wire/tickets.py`` signs.
Times are Unix seconds: two machines must agree on them, within CLOCK_SKEW_S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshnet.domain.errors import EpochChanged, Forbidden
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet, parse_node_id

CLOCK_SKEW_S = 60.0
"""How far two clocks may differ; machines with NTP stay within 1 s, without it within minutes. Raising it keeps expired
tickets alive for longer."""
LINK_TICKET_S = 300.0
"""How long a link ticket opens links; an open link outlives it. Longer than the slowest re-dial, short enough that a
node thrown out of the mesh opens nothing new after 5 minutes."""

Sender = Literal["previous", "tail", "head", "tracker"]
"""Who may send a hop a kind of frame: its predecessor in the ring, the tail (tokens go to the head), the head (probe,
cancel), or the tracker that signed."""


@dataclass(frozen=True, slots=True)
class TicketHop:
    """One hop's part; layers inclusive."""

    node_id: NodeId
    start_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class RouteTicket:
    """Leave to serve one attempt of one call. ``tracker`` is the wallet of the tracker's key."""

    tracker: Wallet
    call_id: CallId
    attempt: int
    model_key: ModelKey
    revision: Revision
    hops: tuple[TicketHop, ...]
    expires: float


@dataclass(frozen=True, slots=True)
class LinkTicket:
    """Leave for ``caller`` to open links to ``target``, both wallets (a tracker's own key counts as one)."""

    tracker: Wallet
    caller: Wallet
    target: Wallet
    expires: float


@dataclass(frozen=True, slots=True)
class Ask:
    """What a peer wants of a node: these layers of these weights for this attempt."""

    call_id: str
    attempt: int
    model_key: str
    revision: str
    start_layer: int
    end_layer: int


def check_hop(ticket: RouteTicket, node_id: str, peer: Wallet, sender: Sender, ask: Ask, now: float) -> TicketHop:
    """This node's hop, when the ticket covers what ``peer`` asks of it.

    Raises Forbidden (code says which rule: ticket_expired, ticket_hop, ticket_peer, ticket_layers, ticket_call), or
    EpochChanged when the weights are others.
    """
    check_time(ticket, now)
    if (ticket.call_id, ticket.attempt) != (ask.call_id, ask.attempt):
        raise Forbidden(f"The ticket is for attempt {ticket.attempt} of {ticket.call_id}.", code="ticket_call")
    index, hop = _find(ticket, node_id)
    expected = _sender(ticket, index, sender)
    if peer != expected:
        raise Forbidden(f"The ticket lets {expected} ask {node_id}, not {peer}.", code="ticket_peer")
    if (ticket.model_key, ticket.revision) != (ask.model_key, ask.revision):
        raise EpochChanged(
            f"The ticket is for {ticket.model_key} {ticket.revision}, not {ask.model_key} {ask.revision}."
        )
    if (hop.start_layer, hop.end_layer) != (ask.start_layer, ask.end_layer):
        raise Forbidden(
            f"The ticket has {node_id} run layers {hop.start_layer}-{hop.end_layer}, "
            f"not {ask.start_layer}-{ask.end_layer}.",
            code="ticket_layers",
        )
    return hop


def check_link(ticket: RouteTicket | LinkTicket, caller: Wallet, target: Wallet, now: float) -> None:
    """Raises Forbidden unless the ticket lets ``caller`` open a link to ``target`` now.

    Any two nodes of a route may link (tokens go back to the head, probes go to everyone), and its tracker may link to
    each of them.
    """
    check_time(ticket, now)
    match ticket:
        case LinkTicket():
            allowed = (ticket.caller, ticket.target) == (caller, target)
        case RouteTicket():
            wallets = {parse_node_id(hop.node_id)[0] for hop in ticket.hops}
            allowed = target in wallets and caller in wallets | {ticket.tracker} and caller != target
    if not allowed:
        raise Forbidden(f"The ticket does not let {caller} link to {target}.", code="ticket_peer")


def check_time(ticket: RouteTicket | LinkTicket, now: float) -> None:
    """Raises Forbidden(code="ticket_expired")."""
    if now > ticket.expires + CLOCK_SKEW_S:
        raise Forbidden(
            f"The ticket expired {now - ticket.expires:.0f} s ago by the clock here.", code="ticket_expired"
        )


def _find(ticket: RouteTicket, node_id: str) -> tuple[int, TicketHop]:
    for index, hop in enumerate(ticket.hops):
        if hop.node_id == node_id:
            return index, hop
    raise Forbidden(f"{node_id} is no hop of the ticket for {ticket.call_id}.", code="ticket_hop")


def _sender(ticket: RouteTicket, index: int, sender: Sender) -> Wallet:
    match sender:
        case "tracker":
            return ticket.tracker
        case "head":
            node_id = ticket.hops[0].node_id
        case "tail":
            node_id = ticket.hops[-1].node_id
        case "previous":
            node_id = ticket.hops[index - 1].node_id
    return parse_node_id(node_id)[0]
