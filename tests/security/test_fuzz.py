"""Ten thousand things that strangers send, with those of tests/relay/test_relay_fuzz.py: an error of the tree or a
message, nothing else, and never more memory than the bytes that came."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet.domain.engine import Rows
from meshnet.domain.errors import Forbidden, FrameError, InvalidRequest, MeshnetError
from meshnet.wire.decode import decode_json
from meshnet.wire.demand import AssignmentRequest, GossipMessage
from meshnet.wire.frames import SessionRows, cut, decode, encode_control
from meshnet.wire.hello import check_answer, check_dial, wallet_in
from meshnet.wire.messages import KINDS, Cancel, HeartbeatRequest, Hello, RegisterRequest
from meshnet.wire.openai import parse_chat_request
from meshnet.wire.relay import parse_http_host, parse_relay_url
from meshnet.wire.routing import ExplainRequest
from meshnet.wire.tickets import open_ticket

(FRAME,) = cut(10, 29, [(SessionRows((7, 0), 0, 0, 2, sample=True), Rows("float32", (2, 8), bytes(64)))])
CONTROL = encode_control(Cancel(7, 0, "x"))
BODIES = (RegisterRequest, HeartbeatRequest, AssignmentRequest, ExplainRequest, GossipMessage)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
MOST_EXTRA = 64 * 1024
"""Bytes that reading a hostile message may take beside the message: error texts, a few small objects."""

often = settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_frame(data: bytes) -> None:
    try:
        message = decode(data)
        if hasattr(message, "split"):
            list(message.split())  # type: ignore[union-attr]
    except FrameError:
        return


@settings(max_examples=3000, deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_as_a_frame(data: bytes) -> None:
    read_frame(data)


@often
@given(st.sampled_from([FRAME, CONTROL]), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_frames_with_bytes_changed(frame: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(frame)
    for index, byte in changes:
        data[index % len(data)] = byte
    read_frame(bytes(data))


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(sorted(KINDS)), JSON)
def test_control_frames_of_any_json(kind: int, value: Any) -> None:
    read_frame(bytes([kind]) + msgspec.json.encode(value))


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BODIES), JSON | st.dictionaries(st.sampled_from(["wallet", "epoch", "model", "url"]), JSON))
def test_bodies_of_any_json(kind: type, value: Any) -> None:
    try:
        decode_json(msgspec.json.encode(value), kind)
    except InvalidRequest:
        return


@settings(max_examples=1000, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["model", "messages", "max_tokens", "temperature", "stream", "stop", "route", "n", "seed"]),
        JSON,
    )
)
def test_chats_of_any_json(value: dict[str, Any]) -> None:
    try:
        parse_chat_request(msgspec.json.encode(value))
    except MeshnetError as error:
        assert isinstance(error, InvalidRequest), error


@settings(max_examples=1000, deadline=None)
@given(st.text(max_size=300) | st.lists(st.text("abcXYZ019-_", max_size=90), min_size=3, max_size=3).map(".".join))
def test_any_text_as_a_ticket_or_an_address(text: str) -> None:
    try:
        open_ticket(text, {"a" * 20})
    except Forbidden as error:
        assert error.code == "bad_ticket"
    parse_http_host(text)
    try:
        parse_relay_url(text)
    except InvalidRequest:
        return


PUBLIC_KEYS = [
    Ed25519PrivateKey.from_private_bytes(seed * 32).public_key().public_bytes_raw().hex() for seed in (b"a", b"b")
]
HELLOS = st.builds(
    Hello,
    peer_id=st.text(min_size=1, max_size=64),
    role=st.sampled_from(["node", "tracker"]),
    boot=st.text(min_size=8, max_size=64),
    wire_version=st.integers(0, 1000),
    public_key=st.sampled_from(["", *PUBLIC_KEYS]),
    nonce=st.just("") | st.binary(min_size=16, max_size=16).map(bytes.hex),
    made_at=st.floats(0, 1e11) | st.just(1000.0),
    proof=st.just("") | st.binary(min_size=64, max_size=64).map(bytes.hex),
)


@settings(max_examples=300, deadline=None)
@given(HELLOS, HELLOS)
def test_no_hello_proves_itself_by_chance(hello: Hello, dialled: Hello) -> None:
    wallet_in(hello)
    refused = 0
    for check in (lambda: check_dial(hello, "a.0-9", now=1000.0), lambda: check_answer(hello, dialled)):
        try:
            check()
        except Forbidden:
            refused += 1
    assert refused == 2


def test_lies_about_sizes_take_no_memory() -> None:
    """A header that promises gigabytes, and every single byte of it set to its most."""
    tracemalloc.start()
    try:
        for index in range(min(80, len(FRAME))):
            data = bytearray(FRAME)
            data[index] = 255
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            read_frame(bytes(data))
            assert tracemalloc.get_traced_memory()[1] - before < len(FRAME) * 2 + MOST_EXTRA, index
    finally:
        tracemalloc.stop()
