"""HELLO proved: each end of a link signs its own for the other, so that a peer_id is its owner's.

Who dials signs for the id it means to reach, with a time and a nonce; who answers signs that nonce. Where TLS pinned to
wallets carries the link (through a relay), the certificate must be the same key's.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec.structs import replace

from meshnet.domain.errors import Forbidden, InvalidRequest
from meshnet.domain.ids import Wallet, parse_node_id, wallet_of
from meshnet.wire.messages import Hello

_CONTEXT = "meshnet-hello-v1"
"""So that nothing else a key signs can pass as a HELLO."""
WINDOW_S = 60.0
"""How old, and how far ahead, a dialler's HELLO may be; as for signed requests."""


def sign_dial(key: Ed25519PrivateKey, hello: Hello, target_id: str, *, now: float, nonce: str) -> Hello:
    """The dialler's HELLO for ``target_id``. ``now`` is Unix seconds, ``nonce`` 32 hex characters."""
    hello = replace(hello, public_key=key.public_key().public_bytes_raw().hex(), nonce=nonce, made_at=now)
    return replace(hello, proof=key.sign(_dialled(hello, target_id)).hex())


def sign_answer(key: Ed25519PrivateKey, hello: Hello, dialler: Hello) -> Hello:
    """The answering end's HELLO."""
    hello = replace(hello, public_key=key.public_key().public_bytes_raw().hex(), nonce=dialler.nonce)
    return replace(hello, proof=key.sign(_answered(hello, dialler.peer_id)).hex())


def check_dial(hello: Hello, own_id: str, *, now: float) -> Wallet:
    """Whose HELLO it is. Raises Forbidden: "unproved", "wrong_peer" (meant for another), "signature_expired" or
    "bad_signature". The caller spends the nonce."""
    if not hello.proof:
        raise Forbidden(f"{hello.peer_id} does not prove its wallet.", code="unproved")
    if abs(now - hello.made_at) > WINDOW_S:
        raise Forbidden(
            f"The HELLO of {hello.peer_id} was made {now - hello.made_at:+.0f} s ago by the clock here; "
            "set the one that is wrong.",
            code="signature_expired",
        )
    return _check(hello, _dialled(hello, own_id))


def check_answer(hello: Hello, dialled: Hello) -> Wallet:
    """Whose answer to our HELLO it is. Raises Forbidden as ``check_dial``."""
    if not hello.proof:
        raise Forbidden(f"{hello.peer_id} does not prove its wallet.", code="unproved")
    if hello.nonce != dialled.nonce:
        raise Forbidden(f"{hello.peer_id} answers another HELLO.", code="bad_signature")
    return _check(hello, _answered(hello, dialled.peer_id))


def wallet_in(hello: Hello) -> Wallet | None:
    """The wallet a HELLO speaks for: a node's is in its id, a tracker's is its key's. None where it names none."""
    if hello.role == "node":
        try:
            return parse_node_id(hello.peer_id)[0]
        except InvalidRequest:
            return None
    return wallet_of(bytes.fromhex(hello.public_key)) if hello.public_key else None


def _check(hello: Hello, text: bytes) -> Wallet:
    try:
        raw = bytes.fromhex(hello.public_key)
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(hello.proof), text)
    except (InvalidSignature, ValueError):
        raise Forbidden(f"The HELLO of {hello.peer_id} was not signed for this.", code="bad_signature") from None
    return wallet_of(raw)


def _dialled(hello: Hello, target_id: str) -> bytes:
    parts = (_CONTEXT, "dial", hello.peer_id, hello.role, hello.boot, target_id, hello.nonce, repr(hello.made_at))
    return "\0".join(parts).encode()


def _answered(hello: Hello, dialler_id: str) -> bytes:
    return "\0".join((_CONTEXT, "answer", hello.peer_id, hello.role, hello.boot, dialler_id, hello.nonce)).encode()
