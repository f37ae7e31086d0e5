"""What the tracker signs with its own key: tickets for calls and links, and its HELLO."""

from __future__ import annotations

from collections.abc import Callable

from daemons.kit.identity import WalletKey
from daemons.kit.proof import Prover
from meshnet.domain.ids import CallId, Wallet
from meshnet.domain.routes import Route
from meshnet.domain.tickets import LINK_TICKET_S, LinkTicket, RouteTicket, TicketHop
from meshnet.wire.tickets import sign_ticket


class Seal:
    """``now`` is monotonic, ``wall`` Unix seconds, ``draw`` gives 32 hex characters. ``required``: nodes must prove
    their wallets when we dial them (every profile but local)."""

    def __init__(
        self,
        key: WalletKey,
        now: Callable[[], float],
        wall: Callable[[], float],
        draw: Callable[[], str],
        *,
        required: bool,
    ) -> None:
        self._key = key
        self._wall = wall
        self.prover = Prover(key, frozenset, now, wall, draw, required=required)

    def route_ticket(self, call_id: CallId, attempt: int, route: Route, seconds_left: float) -> str:
        """Leave for this attempt on this route, for as long as it may take."""
        hops = tuple(TicketHop(hop.node_id, hop.start_layer, hop.end_layer) for hop in route.hops)
        expires = self._wall() + seconds_left
        return sign_ticket(
            self._key.private,
            RouteTicket(self._key.wallet, call_id, attempt, route.model_key, route.revision, hops, expires),
        )

    def link_ticket(self, target: Wallet, caller: Wallet | None = None) -> str:
        """Leave for ``caller``, or ourselves, to link to ``target``."""
        mine = self._key.wallet
        ticket = LinkTicket(mine, caller or mine, target, self._wall() + LINK_TICKET_S)
        return sign_ticket(self._key.private, ticket)
