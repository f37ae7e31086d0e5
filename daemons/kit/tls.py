"""TLS between daemons, pinned to wallets: whoever answers holds the key whose fingerprint the wallet is.

Each wallet has one self-signed certificate, always the same. Python's ssl cannot ask us during the handshake, so every
connection has a context that trusts one certificate, the peer's, checked against the wallet before it is loaded.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ssl
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from meshnet.domain.errors import Forbidden, StartError
from meshnet.domain.ids import Wallet, wallet_of

HANDSHAKE_S = 5.0
"""TLS 1.3 takes one round trip and two signatures: 0.6 s round the world and back on a small machine."""

# The certificate proves a key, not a time: the same bytes for ever, whatever the clock says (RFC 5280 4.1.2.5).
_NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def certificate_of(key: Ed25519PrivateKey) -> bytes:
    """The wallet's certificate, DER: a function of the key alone, since Ed25519 signatures are."""
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wallet_of(public.public_bytes_raw()))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(1)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    return builder.sign(key, None).public_bytes(Encoding.DER)


def encode_certificate(der: bytes) -> str:
    """As it travels in relay messages."""
    return base64.b64encode(der).decode()


def open_certificate(text: str) -> tuple[Wallet, bytes]:
    """Whose certificate this is, and its DER. Raises Forbidden(code="bad_certificate"). It proves nothing by itself:
    whoever speaks TLS with it must hold its key."""
    try:
        der = base64.b64decode(text, validate=True)
        key = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise Forbidden(f"That is no certificate: {error}.", code="bad_certificate") from None
    if not isinstance(key, Ed25519PublicKey):
        raise Forbidden("That certificate's key is not Ed25519.", code="bad_certificate")
    return wallet_of(key.public_bytes_raw()), der


def read_certificate(text: str, wallet: str) -> bytes:
    """The DER of a certificate that came from somewhere. Raises Forbidden unless its key is ``wallet``'s."""
    whose, der = open_certificate(text)
    if whose != wallet:
        raise Forbidden(f"That certificate's key is the one of {whose}, not {wallet}.", code="bad_certificate")
    return der


def pinned_context(side: Literal["server", "client"], own: Path, peer: bytes) -> ssl.SSLContext:
    """A TLS 1.3 context for one connection: ours is the key and certificate in ``own``; the other end must prove the
    key of the certificate ``peer`` (DER, from ``read_certificate``)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "server" else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(own)
    context.load_verify_locations(cadata=peer)
    if side == "server":
        context.num_tickets = 0  # Nobody resumes: a new connection is a new context.
    return context


def own_server(own: Path) -> ssl.SSLContext:
    """TLS 1.3 for our own port, with our wallet's certificate: who dials knows which wallet must answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(own)
    context.num_tickets = 0
    return context


def unpinned_client() -> ssl.SSLContext:
    """For a peer's ``own_server``: TLS 1.3 proves that it holds its certificate's key, whose it is the caller compares
    (``peer_wallet``) before a byte is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def peer_wallet(ssl_object: ssl.SSLObject | None) -> Wallet | None:
    """The wallet the other end of a pinned connection proved; None on a connection without TLS."""
    der = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
    if der is None:
        return None
    key = x509.load_der_x509_certificate(der).public_key()
    return wallet_of(key.public_bytes_raw()) if isinstance(key, Ed25519PublicKey) else None


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS for clients that know a CA: a daemon's public door. Raises StartError when the files do not fit."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"Cannot use certificate {certificate} with key {key}: {error}.") from None
    return context
