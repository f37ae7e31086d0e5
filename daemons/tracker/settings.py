"""How a tracker is set: defaults < TOML [tracker] < MESHNET_* < flags, and the one table of deadlines of a call."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

from meshnet.domain.addresses import check_address
from meshnet.domain.errors import StartError
from meshnet.domain.ids import Wallet
from meshnet.domain.keys import Profile
from meshnet.domain.routing import RoutingConfig
from meshnet.wire import api

_WALLET = re.compile(r"[a-z0-9]{8,64}")


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Raises StartError naming the setting and its range."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback anybody could join or ask: refused under the profile local."""
    port: int = api.DEFAULT_TRACKER_PORT
    """0 asks for a free one."""
    name: str = "tracker"
    """Of the run file and the log."""
    log_level: str = "INFO"
    profile: Profile = "local"
    """Who may come in. local: this machine. lan: with API keys and join tokens. exposed: the same over TLS, or an entry
    of ``join_allow`` instead of a token; bounded per address."""
    tls_certificate: str = ""
    tls_key: str = ""
    """PEM files for https://. Both or none."""
    trusted_proxy: str = ""
    """Addresses of proxies that end TLS before us, with commas between: their X-Forwarded-For names the caller."""
    public_names: str = ""
    """Host names under which clients call us, with commas between. Empty: the address we listen on; beyond loopback
    any, since there a key or a signature proves the caller."""
    join_allow: str = ""
    """Wallets that may join without a join token, with commas between."""
    allow_cidrs: str = ""
    """Private networks that nodes may be in although the profile is exposed, with commas between."""
    trusted_nodes: str = ""
    """Wallets of the only nodes that routes may use, with commas between: every node of a route can read the prompt.
    Empty: all that joined."""
    max_nodes_per_address: int = 8
    """Under the profile exposed: so that one host cannot fill the tracker. Several machines may share a home's."""
    relays: str = ""
    """Control addresses of relays (ws://host:7090) told to nodes that nobody can dial, with commas between."""
    stats_db: str = ""
    """SQLite file of demand, calls, events and the usage ledger. Empty: under the state folder, by the name."""
    peer: tuple[str, ...] = ()
    """Addresses of other trackers to share demand with. From the environment: separated by commas."""
    peer_key: str = ""
    """Admin key (``meshnet keys create``) that peers beyond loopback ask of us; every peer must know it."""
    peer_key: str = ""
    """API key of scope admin that the peers gave us. MESHNET_PEER_KEY keeps it off command lines."""
    route_policy: str = "adr"
    """How routes are chosen when the request does not say."""
    route_explore_share: float = 0.3
    """Share of requests that scout unproven routes. Lower to 0.05-0.1 once real traffic comes."""
    route_weight_alpha: float = 1.0
    """Exploit traffic goes as tps^alpha. Raise once real traffic comes."""
    route_stats_half_life: float = 600.0
    """Seconds until a sample counts half. Lower follows changes faster and re-scouts more."""
    route_min_sample_tokens: int = 8
    """Shorter completions teach nothing: their time is mostly the first token's."""
    route_learning: bool = True
    """Off: ADR-0013's greedy selection serves every request (mode greedy-fallback)."""
    route_rng: int | None = None
    """Seed of the dice that choose routes and draw seeds; for tests and replays."""
    decision_log_mib: int = 16
    """Of the decision log, a ring of two files: some 8,000 decisions. 0 keeps none; then nothing can be replayed."""
    timeout_connect: float = 2.0
    timeout_first_token: float = 15.0
    timeout_between_tokens: float = 2.0
    timeout_call: float = 600.0
    timeout_write: float = 30.0
    """Seconds; the table of Deadlines says what each is for."""
    spare_wait: float = 3.0
    """Seconds a call waits for a node to appear when it has no route. Raising it delays clear errors."""
    audit_share: float = 0.01
    """Share of the calls that went well of which one hop's output is compared with another holder's."""
    drain: float = 30.0
    """Seconds a stop waits for running answers. `meshnet down` does not wait so long."""
    max_calls_kept: int = 1000
    """Calls on the call wall. 2 KiB each."""

    def __post_init__(self) -> None:
        _within("port", self.port, 0, 65535)
        for name in ("timeout_connect", "timeout_first_token", "timeout_between_tokens", "timeout_call"):
            _within(name, getattr(self, name), 0.05, 86_400)
        _within("timeout_write", self.timeout_write, 0.05, 3600)
        _within("spare_wait", self.spare_wait, 0, 600)
        _within("max_nodes_per_address", self.max_nodes_per_address, 1, 10_000)
        _within("drain", self.drain, 0, 3600)
        _within("audit_share", self.audit_share, 0, 1)
        _within("max_calls_kept", self.max_calls_kept, 10, 100_000)
        _within("decision_log_mib", self.decision_log_mib, 0, 65_536)
        self.routing()
        for url in self.peer:
            if not url.startswith(("http://", "https://")) or len(url) > 512:
                raise StartError(f"peer is {url!r}; it must be a tracker's address like http://10.0.0.5:7070.")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise StartError("tls_certificate and tls_key go together: give both, or none.")
        self.allowed_wallets()
        self.trusted_wallets()
        self.proxies()

    def allowed_wallets(self) -> frozenset[Wallet]:
        """Raises StartError naming what is no wallet."""
        return _wallets("join_allow", self.join_allow)

    def trusted_wallets(self) -> frozenset[Wallet]:
        """Empty: every node. Raises StartError naming what is no wallet."""
        return _wallets("trusted_nodes", self.trusted_nodes)

    def check_address(self, address: str) -> object:
        """Raises InvalidRequest when a node of this profile may not be at this IP address."""
        return check_address(address, self.profile, listed(self.allow_cidrs))

    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Raises StartError naming what is no address."""
        try:
            return tuple(ip_network(text) for text in listed(self.trusted_proxy))
        except ValueError as error:
            raise StartError(f"trusted_proxy: {error}.") from None

    @property
    def has_tls(self) -> bool:
        """Its own, or a proxy's before it."""
        return bool(self.tls_certificate or self.trusted_proxy)

    def routing(self) -> RoutingConfig:
        """Raises StartError naming the knob and its range."""
        return RoutingConfig(
            explore_share=self.route_explore_share,
            weight_alpha=self.route_weight_alpha,
            stats_half_life_s=self.route_stats_half_life,
            min_sample_tokens=self.route_min_sample_tokens,
            policy=self.route_policy,  # type: ignore[arg-type]  # RoutingConfig refuses what is none
        )

    def deadlines(self) -> Deadlines:
        return Deadlines(
            connect_s=self.timeout_connect,
            first_token_s=self.timeout_first_token,
            between_tokens_s=self.timeout_between_tokens,
            call_s=self.timeout_call,
            write_s=self.timeout_write,
            spare_wait_s=self.spare_wait,
        )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Every wait of a call, in seconds. The head watches its own ring more closely and names the culprit; these are the
    tracker's, for a head that is silent itself."""

    connect_s: float = 2.0
    """TCP, upgrade and HELLO of a link to a head. A far host answers in 0.3 s."""
    first_token_s: float = 15.0
    """From GENERATE to the first text, beside the prompt's own time (``prefill_slack`` x tokens / measured speed)."""
    between_tokens_s: float = 2.0
    """Floor of max(floor, 8 x the slowest step so far). Raising it delays the discovery of a head that froze."""
    probe_s: float = 0.5
    """A head asked where a silent call is answers within this, or is the culprit."""
    call_s: float = 600.0
    """The whole call, all attempts."""
    write_s: float = 30.0
    """A client that takes no byte for this long is gone."""
    spare_wait_s: float = 3.0
    """How long a call without a route waits for one to appear."""
    headers_s: float = 0.7
    """A stream's headers go out after this at the latest; an error before it still has a status of its own."""
    keepalive_s: float = 5.0
    """Between comment lines while nothing else is sent: below the 10-60 s after which clients and proxies give up."""
    prefill_slack: float = 3.0
    """The prompt may take this many times what the route's nodes measured of themselves."""
    unknown_prefill_tps: float = 20.0
    """Prompt tokens/s assumed of a route that did not say."""
    chars_per_token: float = field(default=3.0)
    """To guess a prompt's length before the head counted it; text has 3-5 characters a token."""

    def first_token(self, prompt_tokens: float, prefill_tps: float) -> float:
        speed = prefill_tps if prefill_tps > 0 else self.unknown_prefill_tps
        return self.first_token_s + self.prefill_slack * prompt_tokens / speed

    def between_tokens(self, slowest_step_s: float) -> float:
        return max(self.between_tokens_s, 8.0 * slowest_step_s)


def _wallets(name: str, text: str) -> frozenset[Wallet]:
    for wallet in listed(text):
        if not _WALLET.fullmatch(wallet):
            raise StartError(f"{name}: {wallet!r} is no wallet.")
    return frozenset(map(Wallet, listed(text)))


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting with commas between."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise StartError(f"{name} is {value!r}; it must be from {low:g} to {high:g}.", param=name)
