from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import Forbidden, Overloaded
from meshnet.domain.ids import wallet_of
from meshnet.domain.nonces import Nonces
from meshnet.wire.signatures import TRACKER_HEADER, sign_request, verify_request

NOW = 1_800_000_000.0
KEY = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
WALLET = wallet_of(KEY.public_key().public_bytes_raw())
URL = "http://tracker.example:7070/v1/nodes?epoch=3"
BODY = b'{"queue_depth": 0}'
TRACKER = "0123456789abcdef/feedfacefeedface"


def signed(key: Ed25519PrivateKey = KEY, body: bytes = BODY, now: float = NOW, tracker: str = TRACKER, method="POST"):
    return sign_request(key, method, URL, body, tracker, now=now, nonce="n" * 32)


def refusal(headers, method="POST", url=URL, body=BODY, tracker=TRACKER, now=NOW) -> str:
    with pytest.raises(Forbidden) as refused:
        verify_request(method, url, headers, body, tracker, now=now)
    return refused.value.code


@pytest.mark.parametrize(("method", "body"), [("POST", BODY), ("DELETE", b"")])
def test_a_signed_request_names_its_wallet(method: str, body: bytes) -> None:
    headers = signed(body=body, method=method)
    assert verify_request(method, URL, headers, body, TRACKER, now=NOW).wallet == WALLET


@pytest.mark.parametrize("age_s", [-60, -1, 0, 59])
def test_the_window_is_a_minute(age_s: float) -> None:
    assert verify_request("POST", URL, signed(now=NOW - age_s), BODY, TRACKER, now=NOW).wallet == WALLET


@pytest.mark.parametrize("age_s", [61, 3600, -61, -3600])
def test_older_and_future_ones_are_refused(age_s: float) -> None:
    assert refusal(signed(now=NOW - age_s)) == "signature_expired"


@pytest.mark.parametrize("age_s", [3600, -3600])
def test_whose_clock_is_off_is_told_only_of_what_they_signed(age_s: float) -> None:
    told: list[tuple[str, float]] = []
    headers = signed(now=NOW - age_s)

    def refused(sent: dict[str, str]) -> Forbidden:
        with pytest.raises(Forbidden) as caught:
            verify_request("POST", URL, sent, BODY, TRACKER, now=NOW, on_clock_off=lambda *off: told.append(off))
        return caught.value

    words = "3600 s behind the one here" if age_s > 0 else "3600 s ahead of the one here"
    assert words in refused(headers).message
    assert told == [(WALLET, age_s)]
    assert refused({**headers, "Content-Type": "text/plain"}).code == "bad_signature"
    assert len(told) == 1


def test_every_covered_part_is_bound() -> None:
    headers = signed()
    assert refusal(headers, method="PUT") == "bad_signature"
    assert refusal(headers, url=URL.replace("7070", "7071")) == "bad_signature"
    assert refusal(headers, url=URL.replace("nodes", "models")) == "bad_signature"
    assert refusal(headers, url=URL.replace("=3", "=4")) == "bad_signature"
    assert refusal(headers, body=BODY + b" ") == "bad_signature"
    assert refusal(headers, body=b"") == "bad_signature"
    assert refusal({**headers, "Content-Type": "text/plain"}) == "bad_signature"


def test_other_trackers_and_other_boots_are_refused() -> None:
    assert refusal(signed(tracker="ffff/feedfacefeedface")) == "wrong_tracker"
    assert refusal(signed(tracker="0123456789abcdef/another-boot")) == "wrong_tracker"
    assert refusal({**signed(tracker="ffff/x"), TRACKER_HEADER: TRACKER}) == "bad_signature"


def test_unsigned_requests_are_told_so() -> None:
    headers = signed()
    for name in ("Signature", "Signature-Input"):
        assert refusal({k: v for k, v in headers.items() if k != name}) == "unsigned"


def test_a_signature_by_another_key_is_refused() -> None:
    mine, theirs = signed(), signed(OTHER)
    assert refusal({**mine, "Signature": theirs["Signature"]}) == "bad_signature"
    assert refusal({**mine, "Signature-Input": theirs["Signature-Input"]}) == "bad_signature"
    assert verify_request("POST", URL, theirs, BODY, TRACKER, now=NOW).wallet != WALLET


def test_leaving_out_a_component_is_refused() -> None:
    """A signature that covers less is valid in itself, and not enough."""
    import datetime

    from http_message_signatures import HTTPMessageSigner  # pyright: ignore[reportPrivateImportUsage]
    from http_message_signatures.algorithms import ED25519  # pyright: ignore[reportPrivateImportUsage]

    from meshnet.wire.signatures import _Message, _Resolver

    message = _Message("POST", URL, {TRACKER_HEADER: TRACKER, "Content-Type": "application/json"})
    created = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_Resolver(KEY)).sign(
        message,
        key_id=KEY.public_key().public_bytes_raw().hex(),
        created=created,
        expires=created + datetime.timedelta(seconds=60),
        nonce="n" * 32,
        tag="meshnet-v1",
        covered_component_ids=("@method", "@path"),
        body=BODY,
    )
    assert refusal(message.headers) == "bad_signature"


@settings(max_examples=60)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_nobody_signs_for_an_id_that_is_not_his_keys(one: bytes, other: bytes) -> None:
    """For all (id, key): the wallet that comes out is the key's, whatever the request says."""
    key = Ed25519PrivateKey.from_private_bytes(one)
    claimed = wallet_of(Ed25519PrivateKey.from_private_bytes(other).public_key().public_bytes_raw())
    got = verify_request("POST", URL, signed(key), BODY, TRACKER, now=NOW).wallet
    assert (got == claimed) == (one == other)


@settings(max_examples=300)
@given(st.sampled_from(["Signature", "Signature-Input", "Content-Digest", TRACKER_HEADER]), st.text(max_size=300))
def test_garbage_headers_are_refused_and_nothing_worse(name: str, value: str) -> None:
    assert refusal({**signed(), name: value}) in ("bad_signature", "wrong_tracker", "unsigned", "signature_expired")


@settings(max_examples=300)
@given(st.integers(0, 400), st.characters(min_codepoint=32, max_codepoint=126))
def test_one_changed_character_is_refused(at: int, letter: str) -> None:
    headers = signed()
    text = headers["Signature-Input"]
    at %= len(text)
    changed = text[:at] + letter + text[at + 1 :]
    if changed != text and changed.partition("=")[0] == text.partition("=")[0]:
        refusal({**headers, "Signature-Input": changed})


def test_a_nonce_is_good_once_for_its_wallet() -> None:
    nonces = Nonces()
    nonces.spend(WALLET, "x" * 16, 0.0)
    with pytest.raises(Forbidden, match="before"):
        nonces.spend(WALLET, "x" * 16, 179.0)
    nonces.spend(wallet_of(b"another"), "x" * 16, 1.0)


def test_a_full_list_refuses_instead_of_forgetting() -> None:
    nonces = Nonces(ttl_s=180, most=2)
    nonces.spend(WALLET, "a" * 16, 0.0)
    nonces.spend(WALLET, "b" * 16, 10.0)
    with pytest.raises(Overloaded):
        nonces.spend(WALLET, "c" * 16, 11.0)
    with pytest.raises(Forbidden):
        nonces.spend(WALLET, "a" * 16, 12.0)
    nonces.spend(WALLET, "c" * 16, 180.5)
    assert len(nonces) == 2
