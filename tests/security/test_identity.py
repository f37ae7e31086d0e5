from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from daemons.kit.identity import load_or_create, make_wallet_key
from daemons.kit.tls import certificate_of, encode_certificate, open_certificate, pinned_context, read_certificate
from meshnet.domain.errors import Forbidden, StartError
from meshnet.domain.ids import wallet_of


def test_a_wallet_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "a" / "wallet.key"
    first, again = load_or_create(path), load_or_create(path)
    assert first.wallet == again.wallet == wallet_of(first.public_key)
    assert first.certificate == again.certificate
    for file in (path, first.tls_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert repr(first) == f"<WalletKey {first.wallet}>"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_wallet_that_others_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "wallet.key"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(StartError, match="chmod 600"):
        load_or_create(path)


def test_a_damaged_wallet_is_no_new_wallet(tmp_path: Path) -> None:
    path = tmp_path / "wallet.key"
    path.write_text("-----BEGIN PRIVATE KEY-----\n")
    path.chmod(0o600)
    with pytest.raises(StartError, match="no key"):
        load_or_create(path)


def test_a_tls_file_of_another_key_is_replaced(tmp_path: Path) -> None:
    one, two = (Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2))
    make_wallet_key(one, tmp_path / "x.tls")
    key = make_wallet_key(two, tmp_path / "x.tls")
    pinned_context("client", key.tls_file, key.certificate)
    assert ssl.DER_cert_to_PEM_cert(key.certificate) in key.tls_file.read_text()


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_certificate_is_taken_for_its_own_wallet_alone(one: bytes, other: bytes) -> None:
    key, claimed = (Ed25519PrivateKey.from_private_bytes(seed) for seed in (one, other))
    text = encode_certificate(certificate_of(key))
    wallet = wallet_of(claimed.public_key().public_bytes_raw())
    if one == other:
        assert read_certificate(text, wallet) == certificate_of(key)
        return
    with pytest.raises(Forbidden):
        read_certificate(text, wallet)


@given(st.binary(max_size=600) | st.text(max_size=200))
def test_garbage_is_no_certificate(data: bytes | str) -> None:
    with pytest.raises(Forbidden):
        open_certificate(data if isinstance(data, str) else encode_certificate(data))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises ssl.SSLError when either end refuses, without sockets."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    ends[1].write(b"hello")
    assert ends[0].read(5) == b"hello"
    assert ends[0].version() == "TLSv1.3"


def test_pinned_ends_trust_each_other_and_nobody_else(tmp_path: Path) -> None:
    node, caller, mallory = (
        make_wallet_key(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32), tmp_path / f"{i}.tls") for i in (1, 2, 3)
    )
    handshake(
        pinned_context("server", node.tls_file, caller.certificate),
        pinned_context("client", caller.tls_file, node.certificate),
    )
    for server, client in ((node, mallory), (mallory, caller)):
        with pytest.raises(ssl.SSLError):
            handshake(
                pinned_context("server", server.tls_file, caller.certificate),
                pinned_context("client", client.tls_file, node.certificate),
            )


def test_a_caller_without_a_certificate_is_refused(tmp_path: Path) -> None:
    node, caller = (
        make_wallet_key(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32), tmp_path / f"{i}.tls") for i in (1, 2)
    )
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(cadata=node.certificate)
    bare.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with pytest.raises(ssl.SSLError):
        handshake(pinned_context("server", node.tls_file, caller.certificate), bare)
