"""Who may call what: one middleware before every handler, closed unless the table of wire/access.py opens it.

In order: one Host, and one of ours; no foreign Origin, on any method; no compressed body, and JSON where there is
a body; then the route's need under the daemon's profile: a key, a wallet's signature, or nothing. Handlers find the
caller in ``caller_of(request)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from daemons.kit.web import Handler, error_response
from meshnet.domain.errors import Forbidden, InvalidRequest, MeshnetError, Overloaded
from meshnet.domain.ids import Wallet, parse_node_id
from meshnet.domain.keys import KeyRecord, KeyRing, Need, Profile, check_key, demand
from meshnet.domain.nonces import Nonces
from meshnet.domain.rates import Rates
from meshnet.wire import api
from meshnet.wire.access import need_of
from meshnet.wire.relay import parse_http_host
from meshnet.wire.signatures import TRACKER_HEADER, Signed, unsigned, verify_request

Network = IPv4Network | IPv6Network
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_AUTHORIZATION_CHARS = 256
"""A key has 56 characters; longer ones are not hashed."""
_RAW_BODIES = {api.FORWARD}
"""Routes whose body may also be raw rows, which no browser's form can send either."""
BODY_S = 10.0
"""For a body to come whole: 4 MiB over a line of 4 Mbit/s. One that drips holds a handler for so long at most."""
RAW_BODY_S = 60.0
"""For rows: 32 MiB."""
REQUESTS_PER_S = 20.0
REQUEST_BURST = 100
"""By one address, under the profile exposed: a console, a few chats and eight nodes behind one address are 10 a second;
the first look of all of them at once is under the burst."""
CONNECTIONS_PER_ADDRESS = 256
"""Open at once by one address, under the profile exposed: a hundred streamed chats of an office behind one router with
two connections each, or all links of a node through one relay. More of them are one host that holds sockets open."""
_INTERNAL = "x-meshnet-"
_TICKET_NEEDS: frozenset[Need] = frozenset({"forward", "files"})
_TRUSTED_NEEDS: frozenset[Need] = frozenset({"link", "forward", "files", "join", "lease"})
"""Needs whose callers may set ``X-Meshnet-*`` headers: daemons of the mesh. Everyone else's are dropped."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request proved: a key, a wallet, both or neither."""

    key: KeyRecord | None = None
    signed: Signed | None = None


@dataclass(slots=True)
class Guard:
    """The rules of one daemon. ``now`` is monotonic, ``wall`` Unix seconds."""

    profile: Profile
    table: dict[tuple[str, str], Need]
    keys: Callable[[], KeyRing]
    now: Callable[[], float]
    wall: Callable[[], float]
    tracker: str = ""
    """``<tracker_id>/<boot>`` that signed requests must name; empty where nothing is signed."""
    names: frozenset[str] | None = LOOPBACK_NAMES
    """Hosts under which we may be called; add the bound address and public names. None: any, which only a daemon that
    asks for keys or proofs may say, since a rebound name brings neither."""
    join_allow: frozenset[Wallet] = frozenset()
    """Wallets that may join an exposed mesh without a join token."""
    wallet: Wallet | None = None
    """Our own: the name under which relays' callers know us."""
    proxies: tuple[Network, ...] = ()
    """Where those stand whose X-Forwarded-For we believe: proxies that end TLS before us."""
    opens: Callable[[str], bool] | None = None
    """Whether a ticket is good for ``forward`` and ``files`` here."""
    on_clock_off: Callable[[Wallet, float], None] = lambda wallet, age_s: None
    """Hears of wallets whose signatures hold but are so many seconds old, or (negative) not made yet."""
    settle: Callable[[float], bool] = lambda age_s: False
    """Whether our clock is set anew, so that a signature of this age is of now."""
    hold: Callable[[], None] = lambda: None
    """Hears that a wallet was let in to join by our clock. Other signatures prove nothing: strangers can make them."""
    body_s: float = BODY_S
    connections_per_address: int = CONNECTIONS_PER_ADDRESS
    nonces: Nonces = field(default_factory=Nonces)
    rates: Rates[str] = field(default_factory=lambda: Rates(REQUESTS_PER_S, REQUEST_BURST))

    async def check(self, request: web.Request) -> Caller:
        """Raises MeshnetError with the reason of the refusal."""
        self._check_rate(request)
        self._check_host(request)
        _check_origin(request)
        path = _canonical(request)
        _check_body(request, path)
        need = need_of(self.table, request.method, path)
        wanted = demand(self.profile, need)
        signed = await self._signer(request) if wanted.signed else None
        key = self._key(request)
        is_allowed = need == "join" and signed is not None and signed.wallet in self.join_allow
        if need in _TICKET_NEEDS and self.opens is not None:
            is_allowed = self.opens(request.headers.get(api.TICKET, ""))
        if not is_allowed:
            check_key(wanted, key)
        if request.can_read_body:
            await self._read(request)
        if need == "join":
            self.hold()
        return Caller(key, signed)

    def lets_in(self, address: str, here: Callable[[], int]) -> bool:
        """Whether this address may open one more connection, its ``here()``-th. A trusted proxy brings many callers."""
        return self.profile != "exposed" or _is_in(address, self.proxies) or here() <= self.connections_per_address

    def is_internal(self, request: web.Request) -> bool:
        return need_of(self.table, request.method, _canonical(request)) in _TRUSTED_NEEDS

    def address_of(self, request: web.Request) -> str:
        """Whose request it is: the other end's address, or the one that a trusted proxy names last."""
        remote = request.remote or ""
        if self.proxies and _is_in(remote, self.proxies):
            named = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
            return named or remote
        return remote

    def _check_rate(self, request: web.Request) -> None:
        if self.profile == "exposed" and not self.rates.take(self.address_of(request), self.now()):
            raise Overloaded("Too many requests from your address.", retry_after_s=1.0, code="rate_limited")

    async def _read(self, request: web.Request) -> bytes:
        """The whole body, which aiohttp keeps for the handler. Raises InvalidRequest(code="slow_body")."""
        if request.content.is_eof():  # It came with the headers, as a short one does.
            return await request.read()
        limit_s = RAW_BODY_S if _canonical(request) in _RAW_BODIES else self.body_s
        try:
            async with asyncio.timeout(limit_s):
                return await request.read()
        except TimeoutError:
            raise InvalidRequest(f"The body did not come within {limit_s:g} s.", code="slow_body") from None

    def _check_host(self, request: web.Request) -> None:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise InvalidRequest(f"{len(hosts)} Host headers; one is needed.", code="bad_host")
        if self.names is None and self.profile != "local":
            return
        name = _host_of(hosts[0])
        address = parse_http_host(name)
        if name not in (self.names or LOOPBACK_NAMES) and not (address is not None and address.wallet == self.wallet):
            raise Forbidden(f"This is not {name}. If it is, start it with that name.", code="bad_host")

    def _key(self, request: web.Request) -> KeyRecord | None:
        header = request.headers.get("Authorization", "")
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer" or len(header) > MAX_AUTHORIZATION_CHARS:
            return None
        return self.keys().find(text.strip())

    async def _signer(self, request: web.Request) -> Signed:
        """Who signed; the nonce is spent last, so that a forger cannot use up somebody's."""
        for name in ("Signature", "Signature-Input", TRACKER_HEADER):
            if len(request.headers.getall(name, [])) > 1:
                raise Forbidden(f"Two {name} headers.", code="bad_signature")
        if "Signature" not in request.headers:
            raise unsigned()
        body = await self._read(request)
        signed = verify_request(
            request.method,
            str(request.url),
            request.headers,
            body,
            self.tracker,
            now=self.wall(),
            on_clock_off=self._clock_off,
        )
        node_id = request.match_info.get("node_id")
        if node_id is not None and parse_node_id(node_id)[0] != signed.wallet:
            raise Forbidden(f"{node_id} is not {signed.wallet}'s.", code="not_yours")
        self.nonces.spend(signed.wallet, signed.nonce, self.now())
        return signed

    def _clock_off(self, wallet: Wallet, age_s: float) -> None:
        if not self.settle(age_s):
            self.on_clock_off(wallet, age_s)


_CALLER = web.RequestKey("caller", Caller)


def caller_of(request: web.Request) -> Caller:
    """What this request proved; nothing when no guard stands before the handler."""
    return request.get(_CALLER, Caller())


def guarding(guard: Guard) -> Middleware:
    """The middleware, to stand before the one that finds handlers' errors or after it: it answers refusals itself."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not guard.is_internal(request):
            request = _without_internal_headers(request)
        try:
            caller = await guard.check(request)
        except MeshnetError as error:
            response = error_response(error, _hints(guard, error))
            if error.code in ("slow_body", "rate_limited"):
                response.force_close()
            return response
        request[_CALLER] = caller
        return await handler(request)

    return middleware


def _hints(guard: Guard, error: MeshnetError) -> dict[str, str]:
    """What a refused caller needs for doing it right."""
    if error.code in ("unsigned", "wrong_tracker", "signature_expired") and guard.tracker:
        return {TRACKER_HEADER: guard.tracker}
    return {"WWW-Authenticate": "Bearer"} if error.code == "unauthorized" else {}


def _check_origin(request: web.Request) -> None:
    """A page in a browser may not speak to us, whatever the method: only one that we served ourselves could."""
    origins = request.headers.getall("Origin", [])
    if origins and (len(origins) > 1 or urlsplit(origins[0]).netloc.lower() != request.headers["Host"].lower()):
        raise Forbidden(f"A page of {origins[0][:128]} may not call this.", code="bad_origin")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Forbidden("A page of another site may not call this.", code="bad_origin")


def _check_body(request: web.Request, path: str | None) -> None:
    """Compressed bodies grow when they are read; a body that is not JSON is what a browser's form can send."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("Send the body uncompressed.", code="unsupported_media_type")
    has_body = request.can_read_body or request.method in ("POST", "PUT", "PATCH")
    kinds = ("application/json", "application/octet-stream") if path in _RAW_BODIES else ("application/json",)
    if has_body and request.headers.get("Content-Type", "").split(";")[0].strip().lower() not in kinds:
        raise InvalidRequest(f"Content-Type must be {' or '.join(kinds)}.", code="unsupported_media_type")


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found.version == network.version and found in network for network in networks)


def _canonical(request: web.Request) -> str | None:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else None


def _host_of(header: str) -> str:
    """The name without its port, lower case; IPv6 without its brackets."""
    text = header.lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _without_internal_headers(request: web.Request) -> web.Request:
    if not any(name.lower().startswith(_INTERNAL) for name in request.headers):
        return request
    kept = [(name, value) for name, value in request.headers.items() if not name.lower().startswith(_INTERNAL)]
    return request.clone(headers=kept)


def guarded_names(host: str, extra: str = "") -> frozenset[str]:
    """The names of a daemon that listens on ``host``: loopback's, its own, and those of the setting."""
    return LOOPBACK_NAMES | {host.lower()} | {name.strip().lower() for name in extra.split(",") if name.strip()}
