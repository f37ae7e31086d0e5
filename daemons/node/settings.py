"""Settings of a node: defaults < [node] of the TOML file < MESHNET_* < flags, checked before anything starts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from meshnet.domain.addresses import check_address
from meshnet.domain.budget import DEFAULT_CONTEXT_TOKENS, DEFAULT_SESSIONS, Promise, parse_size
from meshnet.domain.errors import InvalidRequest, StartError
from meshnet.domain.ids import is_model_key
from meshnet.domain.keys import Profile
from meshnet.domain.shards import Shard, parse_shard
from meshnet.wire.relay import RELAY_SCHEMES

MIN_CONTEXT_TOKENS = 128
"""What the benchmark at start needs: a prompt of 64 tokens and some after it."""
_WALLET = re.compile(r"[a-z0-9]{8,64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    model: str = ""
    """Short name of a model. Empty: the one that helps the mesh most."""
    shard: str = ""
    """Layers to hold, inclusive, ``0-14``. More layers: more memory, fewer hops. Empty: the tracker gives them."""
    tracker: str = "http://127.0.0.1:7070"
    name: str = "node"
    """Names its wallet, run file and log: two nodes of one home need two names."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback anybody could link to it: refused under the profile local."""
    port: int | None = None
    """None: 7071 in the default home, a free one in any other; 0: a free one."""
    advertise_url: str = ""
    """What others dial, when it is not what this node listens on."""
    threads: int | None = None
    """Of torch. None: torch's own choice, all cores; nodes on one machine should share them."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Must be the same along a route. 16 bits halve memory and, on most CPUs, also speed."""
    kv_budget: str = ""
    """Memory that sessions may reserve: a larger one admits more or longer chats. Empty: what --sessions of --context
    need where the tracker gives the layers or --memory is set, else 1 GiB."""
    delay_per_layer_ms: float = 0.0
    """For development: sleeps this long per layer in each step, to play a slower machine."""
    memory: str = ""
    """All that this node may take: weights, KV and workspace, ``8GB``. Empty: 0.8 of what is available."""
    sessions: int = DEFAULT_SESSIONS
    context: int = DEFAULT_CONTEXT_TOKENS
    """KV is kept ready for so many sessions of so many tokens: more of either costs layers."""
    rebalance: bool = False
    """Move to other layers on the tracker's advice, after the sessions have drained."""
    profile: Profile = "local"
    """As the tracker's. Beyond local, peers prove their wallets, hops want tickets, and HTTP wants keys."""
    join_token: str = ""
    """Lets this node join (meshnet keys create NAME --scope join). MESHNET_JOIN_TOKEN keeps it off command lines."""
    ca_file: str = ""
    """PEM of the CA that signed the tracker's certificate, when it is one's own (meshnet ca init)."""
    relay: str = ""
    """Control addresses of relays (ws://host:7090), with commas between: where nobody can dial this node."""
    payout: str = ""
    """Wallet that is to be paid for this node's work, one day. Empty: its own."""
    allow_cidrs: str = ""
    """Private networks whose nodes may be dialled although the profile is exposed, with commas between."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    def check(self) -> None:
        """Raises StartError for any setting that cannot be."""
        if self.model and not is_model_key(self.model):
            raise StartError(f"--model is {self.model!r}; it must name a model of `meshnet models list`.")
        if self.shard and not self.model:
            raise StartError(f"--shard {self.shard} of which model? Give --model too, or neither.")
        if _NAME.fullmatch(self.name) is None:
            raise StartError(f"--name is {self.name!r}; use letters, digits, dot, dash and underscore.")
        if self.delay_per_layer_ms < 0 or (self.threads is not None and self.threads < 1):
            raise StartError("--delay-per-layer-ms must not be negative, and --threads at least 1.")
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise StartError(f"--port is {self.port}; ports go from 0 (a free one) to 65535.")
        if self.profile == "local" and not is_loopback(self.host):
            raise StartError(f"--host {self.host} would let anybody link to this node: give --profile lan or exposed.")
        self.kv_bytes()
        self.memory_bytes()
        if self.shard:
            self.checked_shard()
        self.promise()
        self.relays()
        if self.payout and _WALLET.fullmatch(self.payout) is None:
            raise StartError(f"--payout is {self.payout!r}; it is a wallet, 20 letters and digits.")

    def relays(self) -> tuple[str, ...]:
        """Raises StartError for what is no relay's address."""
        urls = tuple(part.strip() for part in self.relay.split(",") if part.strip())
        for url in urls:
            if not url.startswith(RELAY_SCHEMES):
                raise StartError(
                    f"--relay is {url!r}; a relay's address begins with ws:// or wss://, as wss://host:7090."
                )
        return urls

    def check_address(self, address: str) -> object:
        """Raises InvalidRequest when this profile dials no such IP address."""
        return check_address(address, self.profile, [part for part in self.allow_cidrs.split(",") if part])

    def checked_shard(self) -> Shard:
        """Raises StartError."""
        try:
            return parse_shard(self.shard)
        except InvalidRequest as error:
            raise StartError(error.message) from None

    def promise(self) -> Promise:
        """Raises StartError."""
        if 0 < self.context < MIN_CONTEXT_TOKENS:
            raise StartError(
                f"--context is {self.context}; a node keeps room for {MIN_CONTEXT_TOKENS} tokens at least."
            )
        try:
            return Promise(self.context, self.sessions)
        except InvalidRequest as error:
            raise StartError(error.message) from None

    def kv_bytes(self) -> int | None:
        """None: nobody said. Raises StartError."""
        return _size("kv-budget", self.kv_budget) if self.kv_budget else None

    def memory_bytes(self) -> int | None:
        """None: nobody said. Raises StartError."""
        return _size("memory", self.memory) if self.memory else None


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise StartError(f"--{name}: {error.message}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
