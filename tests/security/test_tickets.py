from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import EpochChanged, Forbidden
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision, Wallet, wallet_of
from meshnet.domain.tickets import CLOCK_SKEW_S, Ask, LinkTicket, RouteTicket, TicketHop, check_hop, check_link
from meshnet.wire.tickets import MAX_TICKET_CHARS, open_ticket, sign_ticket

NOW = 1_800_000_000.0
KEY = Ed25519PrivateKey.from_private_bytes(b"t" * 32)
TRACKER = wallet_of(KEY.public_key().public_bytes_raw())
A, B, C = (Wallet(letter * 20) for letter in "abc")
HOPS = tuple(TicketHop(NodeId(f"{w}.{i * 10}-{i * 10 + 9}"), i * 10, i * 10 + 9) for i, w in enumerate((A, B, C)))
ROUTE = RouteTicket(TRACKER, CallId("call-1"), 1, ModelKey("m"), Revision("ab" * 8), HOPS, NOW + 30)
ASK = Ask("call-1", 1, "m", "ab" * 8, 10, 19)
MIDDLE = HOPS[1].node_id


def test_the_named_hop_serves_the_named_peer() -> None:
    assert check_hop(ROUTE, MIDDLE, A, "previous", ASK, NOW) == HOPS[1]
    assert check_hop(ROUTE, MIDDLE, A, "head", ASK, NOW) == HOPS[1]
    head = replace(ASK, start_layer=0, end_layer=9)
    assert check_hop(ROUTE, HOPS[0].node_id, C, "tail", head, NOW) == HOPS[0]
    assert check_hop(ROUTE, HOPS[0].node_id, TRACKER, "tracker", head, NOW) == HOPS[0]


@pytest.mark.parametrize(
    ("node_id", "peer", "ask", "now", "code"),
    [
        (MIDDLE, A, ASK, NOW + 30 + CLOCK_SKEW_S + 1, "ticket_expired"),
        (MIDDLE, C, ASK, NOW, "ticket_peer"),
        (MIDDLE, B, ASK, NOW, "ticket_peer"),
        (MIDDLE, TRACKER, ASK, NOW, "ticket_peer"),
        (NodeId(f"{B}.10-20"), A, ASK, NOW, "ticket_hop"),
        (MIDDLE, A, replace(ASK, start_layer=9), NOW, "ticket_layers"),
        (MIDDLE, A, replace(ASK, end_layer=20), NOW, "ticket_layers"),
        (MIDDLE, A, replace(ASK, start_layer=12), NOW, "ticket_layers"),
        (MIDDLE, A, replace(ASK, attempt=2), NOW, "ticket_call"),
        (MIDDLE, A, replace(ASK, call_id="call-2"), NOW, "ticket_call"),
    ],
)
def test_anything_else_is_refused(node_id, peer, ask, now, code) -> None:
    with pytest.raises(Forbidden) as refused:
        check_hop(ROUTE, node_id, peer, "previous", ask, now)
    assert refused.value.code == code


@pytest.mark.parametrize("ask", [replace(ASK, revision="cd" * 8), replace(ASK, model_key="n")])
def test_other_weights_are_an_epoch_change(ask) -> None:
    with pytest.raises(EpochChanged):
        check_hop(ROUTE, MIDDLE, A, "previous", ask, NOW)


@pytest.mark.parametrize("ticket", [ROUTE, LinkTicket(TRACKER, A, B, NOW + 5)])
def test_tickets_survive_the_wire(ticket) -> None:
    assert open_ticket(sign_ticket(KEY, ticket), {TRACKER}) == ticket


@pytest.mark.parametrize(
    ("caller", "target", "is_allowed"),
    [(A, B, True), (C, A, True), (TRACKER, B, True), (A, A, False), (Wallet("d" * 20), A, False), (A, TRACKER, False)],
)
def test_a_route_lets_its_hops_link(caller, target, is_allowed) -> None:
    if is_allowed:
        check_link(ROUTE, caller, target, NOW)
        return
    with pytest.raises(Forbidden):
        check_link(ROUTE, caller, target, NOW)


def test_a_link_ticket_is_for_one_direction_of_one_pair() -> None:
    ticket = LinkTicket(TRACKER, A, B, NOW + 5)
    check_link(ticket, A, B, NOW)
    for caller, target, now in ((B, A, NOW), (A, C, NOW), (C, B, NOW), (A, B, NOW + 66)):
        with pytest.raises(Forbidden):
            check_link(ticket, caller, target, now)


def test_a_ticket_of_another_tracker_is_none() -> None:
    with pytest.raises(Forbidden, match="no tracker of ours"):
        open_ticket(sign_ticket(KEY, ROUTE), {A})


@given(st.integers(0, 2000), st.integers(1, 255))
def test_any_change_of_a_signed_ticket_is_refused(at: int, flip: int) -> None:
    """Or it is the same ticket: base64 has spare bits at its end."""
    text = bytearray(sign_ticket(KEY, ROUTE).encode())
    text[at % len(text)] ^= flip
    try:
        assert open_ticket(text.decode("latin-1"), {TRACKER}) == ROUTE
    except Forbidden as error:
        assert error.code == "bad_ticket"


@given(st.text(max_size=200) | st.just("A" * (MAX_TICKET_CHARS + 1)))
def test_no_text_is_a_ticket_by_chance(text: str) -> None:
    with pytest.raises(Forbidden):
        open_ticket(text, {TRACKER})


def test_what_a_tracker_signs_elsewhere_is_no_ticket() -> None:
    payload, key, _ = sign_ticket(KEY, ROUTE).split(".")
    import base64

    raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    bare = base64.urlsafe_b64encode(KEY.sign(raw)).decode().rstrip("=")
    with pytest.raises(Forbidden, match="signature"):
        open_ticket(f"{payload}.{key}.{bare}", {TRACKER})
