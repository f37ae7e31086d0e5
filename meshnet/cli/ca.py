"""``meshnet ca``: certificates of one's own for the doors that clients come in by, where no public CA can help."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshnet.cli.exits import exit_code_of
from meshnet.cli.terminal import complain, error_console
from meshnet.domain.errors import MeshnetError, NotFound, StartError
from meshnet.weights.places import state_root

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

app = typer.Typer(help="Your own certificate authority: init, issue.", no_args_is_help=True)

CA_DAYS = 3650
"""A new CA means a new file on every client; ten years outlive the machines."""
LEAF_DAYS = 90
"""A stolen leaf is of use for so long; issuing again is one command."""
CLOCK_SLACK = datetime.timedelta(hours=1)
"""Valid from a little before now, for clients whose clocks are behind."""


@app.command()
def init(
    name: Annotated[list[str] | None, typer.Argument(help="Host names and addresses of a first certificate.")] = None,
) -> None:
    """Make the CA of this home, once, and a certificate for the names given."""
    try:
        folder = _folder()
        if not (folder / "ca.pem").exists():
            _make_ca(folder)
            typer.echo(f"{folder / 'ca.pem'}")
            error_console().print("Give that file to clients (MESHNET_CA_FILE, --ca-file); keep ca.key to yourself.")
        if name:
            _tell(_issue(folder, name))
    except MeshnetError as error:
        complain(error.message)
        raise typer.Exit(exit_code_of(error)) from None


@app.command()
def issue(name: Annotated[list[str], typer.Argument(help="Host names and addresses it is for.")]) -> None:
    """Make a certificate for these names, valid for 90 days."""
    try:
        _tell(_issue(_folder(), name))
    except MeshnetError as error:
        complain(error.message)
        raise typer.Exit(exit_code_of(error)) from None


def _tell(certificate: Path) -> None:
    typer.echo(f"--tls-certificate {certificate} --tls-key {certificate.with_suffix('.key')}")


def _folder() -> Path:
    return state_root(os.environ) / "ca"


def _make_ca(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    builder = (
        _builder("meshnet CA", "meshnet CA", key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _save(folder / "ca.pem", builder.sign(key, None), key)


def _issue(folder: Path, names: list[str]) -> Path:
    """Raises NotFound without a CA, StartError for a name that is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if not (folder / "ca.key").exists():
        raise NotFound("There is no CA in this home. Run: meshnet ca init")
    authority = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(authority, Ed25519PrivateKey):
        raise StartError(f"{folder / 'ca.key'} is no key of ours.")
    key = Ed25519PrivateKey.generate()
    builder = (
        _builder(names[0][:64], "meshnet CA", key, LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    path = folder / f"{''.join(c if c.isalnum() or c in '.-' else '_' for c in names[0])}.pem"
    _save(path, builder.sign(authority, None), key)
    return path


def _builder(subject: str, issuer: str, key: Ed25519PrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not name.isascii() or not name or any(c.isspace() for c in name):
        raise StartError(f"{name!r} is no host name or address.")
    return x509.DNSName(name)


def _save(path: Path, certificate: x509.Certificate, key: Ed25519PrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".key"), private, 0o600)
        _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise StartError(f"Cannot write {path}: {error.strerror}.") from None


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
