"""The relay's two doors: the control WebSocket of nodes, and the splice port.

Control (JSON text messages): the relay sends ``Challenge``, the node ``Prove``, the relay ``Welcome``; then the relay
sends ``Wanted`` whenever somebody asks for a link, and ``Leaving`` before it stops.

Splice port (raw TCP, each message a 2-byte big-endian length and JSON): the relay sends ``Greeting``. A caller answers
``Reach``, a node that was wanted ``Take``. The relay sends ``Spliced`` or ``Refused``; after ``Spliced`` the socket is
the other end's, byte for byte. The caller speaks first.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshnet.domain.errors import FrameError, InvalidRequest
from meshnet.domain.ids import Wallet
from meshnet.wire.messages import Name, PublicKeyText, TicketText, WalletText

CONTROL = "/v1/relay"
RELAYS = "/v1/seats"
"""Who is at the relay, for operators."""
MAX_MESSAGE_BYTES = 16 * 1024
"""A ticket of 64 hops and a certificate; both ends refuse more before they read it. Below 18,245, so that the first two
letters of an HTTP request are refused as a length."""
MAX_CONTROL_BYTES = MAX_MESSAGE_BYTES
LENGTH_BYTES = 2

RELAY_SCHEMES = ("ws://", "wss://", "http://", "https://")
"""Of a relay's control address; http as well, since that is how a relay says where it listens."""
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""32 random bytes, in hex."""
Token = Nonce
Proof = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]
"""An Ed25519 signature, in hex."""
Certificate = Annotated[str, Meta(max_length=2048, pattern=r"^[A-Za-z0-9+/=]*\Z")]
"""The wallet's own certificate, DER in base64 (about 450 characters): who gets it checks its key against the wallet."""
Ticket = TicketText
RelayId = Annotated[str, Meta(pattern=r"^[a-z0-9]{8,64}\Z")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]


class Challenge(Struct, frozen=True, kw_only=True, tag="challenge", tag_field="kind", forbid_unknown_fields=True):
    """Relay to node: sign this. ``boot`` is the relay process."""

    relay_id: RelayId
    boot: RelayId
    nonce: Nonce


class Prove(Struct, frozen=True, kw_only=True, tag="prove", tag_field="kind", forbid_unknown_fields=True):
    """Node to relay: this wallet is mine. ``proof`` signs ``seat_proof`` of the challenge."""

    public_key: PublicKeyText
    certificate: Certificate
    proof: Proof
    name: Name = "node"


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome", tag_field="kind", forbid_unknown_fields=True):
    """Relay to node: you are reachable as ``relay://<this host>:<splice_port>/<wallet>``."""

    splice_port: Port


class Wanted(Struct, frozen=True, kw_only=True, tag="wanted", tag_field="kind", forbid_unknown_fields=True):
    """Relay to node: somebody asks for a link. Dial the splice port and ``Take`` the token; it is good once.

    The node checks the ticket and the certificate itself: a relay is trusted with neither.
    """

    token: Token
    ticket: Ticket
    certificate: Certificate


class Leaving(Struct, frozen=True, kw_only=True, tag="leaving", tag_field="kind", forbid_unknown_fields=True):
    """Relay to node: I stop. Come back somewhere between ``back_in_s`` and ``back_in_s + spread_s`` from now."""

    back_in_s: Seconds
    spread_s: Seconds


class Greeting(Struct, frozen=True, kw_only=True, tag="greeting", tag_field="kind", forbid_unknown_fields=True):
    """Relay to whoever opened the splice port."""

    relay_id: RelayId
    nonce: Nonce


class Reach(Struct, frozen=True, kw_only=True, tag="reach", tag_field="kind", forbid_unknown_fields=True):
    """Caller to relay: splice me to ``target``. ``proof`` signs ``reach_proof`` of the greeting."""

    target: WalletText
    ticket: Ticket
    public_key: PublicKeyText
    certificate: Certificate
    proof: Proof


class Take(Struct, frozen=True, kw_only=True, tag="take", tag_field="kind", forbid_unknown_fields=True):
    """Node to relay: I am the other end of this."""

    token: Token


class Spliced(Struct, frozen=True, kw_only=True, tag="spliced", tag_field="kind", forbid_unknown_fields=True):
    """Relay to both: from here on the bytes are the other end's. ``certificate`` is the node's, for the caller."""

    certificate: Certificate = ""


class Refused(Struct, frozen=True, kw_only=True, tag="refused", tag_field="kind", forbid_unknown_fields=True):
    """Relay to either; the socket closes."""

    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=512)]


class SeatMessage(Struct, frozen=True):
    """One node at a relay, for its operator."""

    wallet: str
    name: str
    address: str
    since_s: float
    links: int
    bytes: int


ToNode = Challenge | Welcome | Wanted | Leaving | Refused
ToCaller = Greeting | Spliced | Refused
ToSplice = Reach | Take

S = TypeVar("S")


def encode(message: Struct) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes | str, into: type[S]) -> S:
    """Raises FrameError when it is not one of ``into``."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise FrameError(f"a relay message of {len(data)} bytes")
    try:
        return msgspec.json.decode(data, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a relay message: {error}") from None


def framed(message: Struct) -> bytes:
    """With its length in front, as the splice port has it."""
    data = encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def frame_length(prefix: bytes) -> int:
    """Raises FrameError when the length is none we take."""
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= MAX_MESSAGE_BYTES:
        raise FrameError(f"a relay message of {length} bytes")
    return length


def seat_proof(challenge: Challenge, public_key: bytes) -> bytes:
    """What a node signs: bound to one relay, one of its processes and one challenge."""
    return (
        b"\0".join(
            (b"meshnet-relay-seat-v1", challenge.relay_id.encode(), challenge.boot.encode(), challenge.nonce.encode())
        )
        + b"\0"
        + public_key
    )


def reach_proof(greeting: Greeting, target: str, ticket: str) -> bytes:
    """What a caller signs: bound to one connection to one relay, to the node and the ticket."""
    return b"\0".join(
        (
            b"meshnet-relay-reach-v1",
            greeting.relay_id.encode(),
            greeting.nonce.encode(),
            target.encode(),
            ticket.encode(),
        )
    )


_RELAY_URL = re.compile(
    r"(?P<scheme>relay|tls)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+):(?P<port>\d{1,5})/(?P<wallet>[a-z0-9]{8,64})"
)
_PLAIN_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?/?")
_HOST = re.compile(r"(?P<wallet>[a-z0-9]{8,64})\.(?P<port>\d{1,5})\.(?P<host>[a-z0-9._-]+)\.(?P<kind>(?:relay|tls)6?)")


class RelayAddress(Struct, frozen=True):
    """Where a node is that is known by its wallet: at its relay's splice port, or (``scheme`` tls) at a port of its
    own that speaks TLS with the wallet's certificate."""

    host: str
    port: int
    wallet: Wallet
    scheme: Literal["relay", "tls"] = "relay"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.wallet}"

    @property
    def http_host(self) -> str:
        """A host name that stands for this address in ``http://`` URLs; HTTP pools keep apart what differs here."""
        if ":" in self.host:
            return f"{self.wallet}.{self.port}.{self.host.replace(':', '-')}.{self.scheme}6"
        return f"{self.wallet}.{self.port}.{self.host}.{self.scheme}"


def parse_relay_url(url: str) -> RelayAddress:
    """Raises InvalidRequest(param="url")."""
    match = _RELAY_URL.fullmatch(url.rstrip("/"))
    if match is None or not 0 < int(match["port"]) < 65536:
        raise InvalidRequest(f"{url!r} is not relay://host:port/<wallet>, nor tls:// of the kind.", param="url")
    scheme = "tls" if match["scheme"] == "tls" else "relay"
    return RelayAddress(match["host"].strip("[]"), int(match["port"]), Wallet(match["wallet"]), scheme)


def check_node_url(url: str) -> None:
    """Raises InvalidRequest(param="url") unless it says where a node is and nothing else: whoever dials it asks for
    paths of our own there, never for one that the address brings along."""
    if url.startswith(("relay://", "tls://")):
        parse_relay_url(url)
        return
    match = _PLAIN_URL.fullmatch(url)
    if match is None or not 0 < int(match["port"] or 80) < 65536:
        raise InvalidRequest(
            f"{url!r} is no node's address: http://host:port, without a path, query, fragment or user.",
            code="bad_address",
            param="url",
        )


def parse_http_host(host: str) -> RelayAddress | None:
    """The address that ``http_host`` made, or None for a plain host."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    name = match["host"].replace("-", ":") if match["kind"].endswith("6") else match["host"]
    scheme = "tls" if match["kind"].startswith("tls") else "relay"
    return RelayAddress(name, int(match["port"]), Wallet(match["wallet"]), scheme)


def dialled_url(url: str) -> str:
    """``relay://…`` and ``tls://…`` as the ``http://`` URL that the daemons' connector understands; others as they
    are."""
    return f"http://{parse_relay_url(url).http_host}" if url.startswith(("relay://", "tls://")) else url
