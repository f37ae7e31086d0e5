"""How a relay is set: defaults < TOML [relay] < MESHNET_* < flags; every limit with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshnet.domain.errors import StartError
from meshnet.domain.ids import Wallet
from meshnet.wire import api

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_WALLET = re.compile(r"[a-z0-9]{8,64}")


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Raises StartError naming the setting and its range."""

    host: str = "127.0.0.1"
    """Address to listen on, both ports. Beyond loopback a relay needs the trackers whose tickets it takes."""
    port: int = api.DEFAULT_RELAY_PORT
    """Control connections of nodes, health and metrics. 0 asks for a free one."""
    splice_port: int = api.DEFAULT_RELAY_PORT + 1
    """Where links come in, from both ends. 0 asks for a free one."""
    name: str = "relay"
    """Of the run file, the key file and the log."""
    log_level: str = "INFO"
    trackers: str = ""
    """Wallets of the trackers whose tickets open links here, with commas between. Empty: nothing is ever spliced."""
    tls_certificate: str = ""
    tls_key: str = ""
    """PEM files for wss:// on the control port. Links need none: TLS between the two ends is inside them."""
    max_nodes: int = 256
    """Seats. One costs a socket and some 50 KiB; more than that wants a second relay."""
    max_nodes_per_address: int = 8
    """So that one host cannot take all seats. Several machines may stand behind one home's address."""
    max_splices: int = 1024
    """Two sockets and at most 1 MiB of buffers each. 256 nodes with four links."""
    max_splices_per_node: int = 64
    """A node links to the hops of its routes and its trackers: a dozen."""
    max_splices_per_address: int = 512
    """Asked for by callers at one address: half of all, so that no host takes every splice; a tracker that links to
    each of 256 nodes has 256."""
    max_waiting: int = 64
    """Sockets that have not said yet what they want: all that a stranger can hold open."""
    max_waiting_per_address: int = 16
    """Of those, by one address."""
    opens_per_s: float = 20.0
    open_burst: int = 40
    """Links one wallet may ask for: a whole mesh re-dialling at once is under 40, open and close in a loop is not."""
    handshake_s: float = 5.0
    """For a stranger to say what it wants, and for a node to dial back: three round trips round the world are 1 s."""
    idle_s: float = 60.0
    """A link pings every 5 s: a splice without a byte for that long has lost an end that no reset told of."""
    max_splice_gib: int = 1024
    """GiB through one splice before it is cut: a whole large model is 70; beyond 1,024 something loops."""

    def __post_init__(self) -> None:
        for name in ("port", "splice_port"):
            _within(name, getattr(self, name), 0, 65535)
        for name in (
            "max_nodes",
            "max_nodes_per_address",
            "max_splices",
            "max_splices_per_node",
            "max_splices_per_address",
            "max_waiting",
            "max_waiting_per_address",
        ):
            _within(name, getattr(self, name), 1, 100_000)
        _within("opens_per_s", self.opens_per_s, 0.1, 10_000)
        _within("handshake_s", self.handshake_s, 0.1, 60)
        _within("idle_s", self.idle_s, 1, 86_400)
        if self.host not in LOOPBACK and not self.tracker_wallets():
            raise StartError(
                f"A relay on {self.host} needs to know whose tickets to take: --trackers <wallet of your tracker>."
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise StartError("tls_certificate and tls_key go together: give both, or none.")

    def tracker_wallets(self) -> frozenset[Wallet]:
        """Raises StartError naming what is no wallet."""
        wallets = [part.strip() for part in self.trackers.split(",") if part.strip()]
        for wallet in wallets:
            if not _WALLET.fullmatch(wallet):
                raise StartError(f"trackers: {wallet!r} is no wallet.")
        return frozenset(map(Wallet, wallets))


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise StartError(f"{name} must be {low:g} to {high:g}, not {value:g}.")
