"""Requests that a wallet signs: RFC 9421 over the raw bytes, good once, for one process of one tracker, for a minute.

Covered: method, authority, path, query, Content-Digest, Content-Type where there is a body, and ``X-Meshnet-Tracker``
(``<tracker_id>/<boot>``): nothing can be replayed to another tracker or after a restart. ``keyid`` is the public key
itself, in hex: its fingerprint is the wallet, and no table of keys is needed. The caller spends the nonce.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import http_sf
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures.algorithms import ED25519  # pyright: ignore[reportPrivateImportUsage]
from http_message_signatures.exceptions import HTTPMessageSignaturesException
from http_message_signatures.resolvers import HTTPSignatureKeyResolver
from http_message_signatures.signatures import HTTPMessageSigner, HTTPMessageVerifier

from meshnet.domain.errors import Forbidden
from meshnet.domain.ids import Wallet, wallet_of

TRACKER_HEADER = "X-Meshnet-Tracker"
"""Which process of which tracker a signed request is for; a tracker's refusal carries the right value."""
TAG = "meshnet-v1"
WINDOW_S = 60.0
"""How old, and how far ahead, a signature may be. Shorter, and clocks without NTP fail; longer, and nonces pile up."""
MAX_HEADER_CHARS = 2048
"""Signature-Input is about 330 characters, Signature about 100; parsing costs time per character."""
_COVERED = ("@method", "@authority", "@path", "@query", "content-digest", "x-meshnet-tracker")
_LABEL = "meshnet"


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed, and the nonce that is to be spent."""

    wallet: Wallet
    public_key: bytes
    nonce: str


@dataclass(slots=True)
class _Message:
    """What the library reads of a request."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)


class _Resolver(HTTPSignatureKeyResolver):
    def __init__(self, private: Ed25519PrivateKey | None = None) -> None:
        self._private = private

    def resolve_private_key(self, key_id: str) -> Any:
        return self._private

    def resolve_public_key(self, key_id: str) -> Any:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(key_id))


class _Verifier(HTTPMessageVerifier):
    """The library's checks but for the time, which is looked at when it is known who signed."""

    def __init__(self) -> None:
        super().__init__(signature_algorithm=ED25519, key_resolver=_Resolver())

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        created, expires = sig_input.params.get("created"), sig_input.params.get("expires")
        if type(created) is not int or type(expires) is not int:
            raise Forbidden("A signature carries created and expires.", code="bad_signature")
        if not 0 <= expires - created <= WINDOW_S:
            raise Forbidden(f"A signature holds for {WINDOW_S:.0f} s at most.", code="bad_signature")


def _off(age_s: float, now: float) -> str:
    """What is wrong with a signature of this age, for whoever must set a clock."""
    here = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    clock = "behind" if age_s > 0 else "ahead of"
    return (
        f"The request was signed by a clock {abs(age_s):.0f} s {clock} the one here, which says {here}; "
        f"{WINDOW_S:.0f} s are allowed. Set the clock that is wrong."
    )


def sign_request(
    key: Ed25519PrivateKey, method: str, url: str, body: bytes, tracker: str, *, now: float, nonce: str
) -> dict[str, str]:
    """The headers to add to a request with this body. ``url`` is absolute, as dialled; ``now`` is Unix seconds."""
    headers = {TRACKER_HEADER: tracker}
    covered = _COVERED
    if body:
        headers["Content-Type"] = "application/json"
        covered = (*_COVERED, "content-type")
    message = _Message(method, url, headers)
    created = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_Resolver(key)).sign(
        message,
        key_id=key.public_key().public_bytes_raw().hex(),
        created=created,
        expires=created + datetime.timedelta(seconds=WINDOW_S),
        nonce=nonce,
        label=_LABEL,
        tag=TAG,
        covered_component_ids=covered,
        body=body,
    )
    return message.headers


def verify_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    tracker: str,
    *,
    now: float,
    on_clock_off: Callable[[Wallet, float], None] = lambda wallet, age_s: None,
) -> Signed:
    """Who signed this request. Raises Forbidden: "unsigned" (401), "wrong_tracker", "signature_expired" or
    "bad_signature".

    ``headers`` are the request's, one value a name; ``tracker`` is our own ``<tracker_id>/<boot>``. ``on_clock_off``
    hears of a signature that holds but for its time: whose it is and how old, negative if it is yet to be made.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    for name in ("signature", "signature-input"):
        if name not in lowered:
            raise unsigned()
        if len(lowered[name]) > MAX_HEADER_CHARS:
            raise Forbidden(f"{name} has {len(lowered[name])} characters.", code="bad_signature")
    if lowered.get(TRACKER_HEADER.lower()) != tracker:
        raise Forbidden("The request was signed for another tracker, or before this one started.", code="wrong_tracker")
    required = (*_COVERED, "content-type") if body else _COVERED
    try:
        result = _Verifier().verify(
            _Message(method, url, lowered), max_age=None, expect_tag=TAG, require_components=required, body=body
        )
    except (HTTPMessageSignaturesException, http_sf.StructuredFieldError) as error:
        raise Forbidden(f"The signature does not hold: {error}.", code="bad_signature") from None
    if len(result) != 1:
        raise Forbidden(f"{len(result)} signatures; one is expected.", code="bad_signature")
    signed = _signed(result[0].parameters)
    created, expires = (float(result[0].parameters[name]) for name in ("created", "expires"))
    age_s = now - created
    if not -WINDOW_S <= age_s <= WINDOW_S or now > expires:
        on_clock_off(signed.wallet, age_s)
        raise Forbidden(_off(age_s, now), code="signature_expired")
    return signed


def unsigned() -> Forbidden:
    return Forbidden("This request must be signed by the node's wallet.", code="unsigned")


def _signed(parameters: Mapping[str, Any]) -> Signed:
    nonce = str(parameters.get("nonce", ""))
    if not 16 <= len(nonce) <= 64:
        raise Forbidden("A signature carries a nonce of 16 to 64 characters.", code="bad_signature")
    public_key = bytes.fromhex(str(parameters["keyid"]))
    return Signed(wallet_of(public_key), public_key, nonce)
