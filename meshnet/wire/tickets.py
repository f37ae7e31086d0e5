"""Tickets as text: ``<payload>.<public key>.<signature>``, base64url, signed over the raw payload.

The payload is JSON; it is verified before it is parsed, and never re-serialised, so that no two readers can see two
tickets in one text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

from meshnet.domain.errors import Forbidden
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet, wallet_of
from meshnet.domain.tickets import LinkTicket, RouteTicket, TicketHop
from meshnet.wire.messages import MAX_TICKET_CHARS, Count, Layer, ModelKeyText, NodeIdText, RevisionText, WalletText

_CONTEXT = b"meshnet-ticket-v1\0"
"""So that nothing else a tracker's key signs can pass as a ticket."""
Unix = Annotated[float, Meta(ge=0, le=1e11)]


class _Hop(Struct, frozen=True, forbid_unknown_fields=True):
    node_id: NodeIdText
    start_layer: Layer
    end_layer: Layer


class _Route(Struct, frozen=True, forbid_unknown_fields=True, tag="route", tag_field="kind"):
    call_id: Annotated[str, Meta(min_length=1, max_length=64)]
    attempt: Count
    model_key: ModelKeyText
    revision: RevisionText
    hops: Annotated[tuple[_Hop, ...], Meta(min_length=1, max_length=64)]
    expires: Unix


class _Link(Struct, frozen=True, forbid_unknown_fields=True, tag="link", tag_field="kind"):
    caller: WalletText
    target: WalletText
    expires: Unix


_decoder = msgspec.json.Decoder(_Route | _Link)


def sign_ticket(key: Ed25519PrivateKey, ticket: RouteTicket | LinkTicket) -> str:
    """The ticket's text. ``key`` is the tracker's; its wallet must be the ticket's ``tracker``."""
    payload = msgspec.json.encode(_to_wire(ticket))
    public = key.public_key().public_bytes_raw()
    return ".".join(_encode(part) for part in (payload, public, key.sign(_CONTEXT + payload)))


def open_ticket(text: str, trusted: Container[Wallet]) -> RouteTicket | LinkTicket:
    """The ticket, when one of the ``trusted`` trackers signed it. Raises Forbidden(code="bad_ticket").

    Whether it is still good, and for whom, is ``domain.tickets``' to say.
    """
    if len(text) > MAX_TICKET_CHARS:
        raise _bad(f"it has {len(text)} characters")
    try:
        payload, public, signature = (_decode(part) for part in text.split("."))
        tracker = wallet_of(public)
        if tracker not in trusted:
            raise _bad(f"{tracker} is no tracker of ours")
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _CONTEXT + payload)
    except (ValueError, binascii.Error):
        raise _bad("it is no ticket") from None
    except InvalidSignature:
        raise _bad("its signature does not hold") from None
    try:
        return _from_wire(_decoder.decode(payload), tracker)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(str(error)) from None


def _to_wire(ticket: RouteTicket | LinkTicket) -> _Route | _Link:
    match ticket:
        case LinkTicket():
            return _Link(ticket.caller, ticket.target, ticket.expires)
        case RouteTicket():
            hops = tuple(_Hop(hop.node_id, hop.start_layer, hop.end_layer) for hop in ticket.hops)
            return _Route(ticket.call_id, ticket.attempt, ticket.model_key, ticket.revision, hops, ticket.expires)


def _from_wire(ticket: _Route | _Link, tracker: Wallet) -> RouteTicket | LinkTicket:
    match ticket:
        case _Link():
            return LinkTicket(tracker, Wallet(ticket.caller), Wallet(ticket.target), ticket.expires)
        case _Route():
            return RouteTicket(
                tracker,
                CallId(ticket.call_id),
                ticket.attempt,
                ModelKey(ticket.model_key),
                Revision(ticket.revision),
                tuple(TicketHop(NodeId(hop.node_id), hop.start_layer, hop.end_layer) for hop in ticket.hops),
                ticket.expires,
            )


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def _decode(text: str) -> bytes:
    if not text.isascii():
        raise ValueError(text)
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _bad(why: str) -> Forbidden:
    return Forbidden(f"Not a ticket of this mesh: {why}.", code="bad_ticket")
