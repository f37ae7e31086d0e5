"""Every route of every daemon, every method, against everything a stranger can bring: by walking the route tables."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.clock import SteadyClock
from daemons.kit.files import FileServer
from daemons.kit.guard import Guard, caller_of, guarded_names, guarding
from daemons.kit.keyfile import KeyFile
from daemons.kit.web import answer_errors, serve
from daemons.node.app import node_app, status_of
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from daemons.relay.app import Relay
from daemons.relay.settings import RelayConfig
from daemons.tracker.app import Handlers
from meshnet.domain.errors import StartError
from meshnet.domain.ids import NodeId, wallet_of
from meshnet.domain.keys import KeyRecord, KeyRing, Profile, Scope, make_key
from meshnet.domain.rates import Rates
from meshnet.domain.shards import Shard
from meshnet.weights.store import Store
from meshnet.wire import access
from meshnet.wire.keyfile import encode_keys
from meshnet.wire.signatures import TRACKER_HEADER, sign_request
from tests.tracker.running import run_tracker

NOW = 1_800_000_000.0
TRACKER = "tracker01/boot0001"
NODE = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
WALLET = wallet_of(NODE.public_key().public_bytes_raw())
SCOPES: tuple[Scope, ...] = ("chat", "read", "admin", "join")
MADE: dict[str, tuple[str, KeyRecord]] = {
    scope: make_key(scope, frozenset({scope}), bytes([i]) * 32, 0.0) for i, scope in enumerate(SCOPES, 1)
}
RING = KeyRing(record for _, record in MADE.values())
TABLES = {"tracker": access.TRACKER, "node": access.NODE, "relay": access.RELAY}
ROUTES = [(name, *route) for name, table in TABLES.items() for route in table]


def bearer(scope: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {MADE[scope][0]}"}


def path_of(pattern: str) -> str:
    return pattern.format(node_id=f"{WALLET}.0-9", model_key="m", call_id="call-1", name="config.json")


@dataclass
class Guarded:
    """A server whose handlers only note that they ran."""

    base: str
    http: aiohttp.ClientSession
    ran: list[web.Request] = field(default_factory=list)

    async def ask(self, method: str, pattern: str, headers: dict[str, str] | None = None, body: bytes | None = None):
        """Status and error code."""
        given = headers or {}
        if method in ("POST", "PUT", "PATCH") and "Content-Type" not in given:
            given = {**given, "Content-Type": "application/json"}
        async with self.http.request(method, self.base + path_of(pattern), headers=given, data=body) as response:
            text = await response.json() if response.content_type == "application/json" and method != "HEAD" else {}
            return response.status, text.get("error", {}).get("code", "")


@contextlib.asynccontextmanager
async def guarded(profile: Profile, name: str = "tracker", **changes: object) -> AsyncIterator[Guarded]:
    changes = {"tracker": TRACKER, "rates": Rates(1.0, 10_000), **changes}
    changes = {"now": lambda: 0.0, "wall": lambda: NOW, **changes}
    guard = Guard(profile, TABLES[name], lambda: RING, **changes)  # type: ignore[arg-type]
    ran: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        ran.append(request)
        return web.json_response({})

    app = web.Application(middlewares=[answer_errors, guarding(guard)])
    for method, path in TABLES[name]:
        app.router.add_route(method, path, handler)
    app.router.add_route("GET", "/v1/new", handler)
    site = await serve(app, "127.0.0.1", 0, lets_in=guard.lets_in)
    async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Content-Type"]) as http:
        try:
            yield Guarded(site.url, http, ran)
        finally:
            await site.close()


BAD: dict[str, tuple[dict[str, str], str]] = {
    "bad host": ({"Host": "evil.example"}, "bad_host"),
    "bad host with our port": ({"Host": "evil.example:7070"}, "bad_host"),
    "host that begins like ours": ({"Host": "localhost.evil.example"}, "bad_host"),
    "foreign origin": ({"Origin": "https://evil.example"}, "bad_origin"),
    "null origin": ({"Origin": "null"}, "bad_origin"),
    "our name at another port": ({"Origin": "http://127.0.0.1:1"}, "bad_origin"),
    "another site's page": ({"Sec-Fetch-Site": "cross-site"}, "bad_origin"),
}


@pytest.mark.parametrize("profile", ["local", "lan", "exposed"])
@pytest.mark.parametrize("name", TABLES)
async def test_no_route_takes_a_bad_host_or_a_foreign_page_on_any_method(profile: Profile, name: str) -> None:
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    async with guarded(profile, name) as server:
        for (_, path), method, bad in itertools.product(TABLES[name], methods, BAD):
            headers, code = BAD[bad]
            status, got = await server.ask(method, path, {**bearer("admin"), **headers})
            assert status == 403, (method, path, bad)
            assert method == "HEAD" or got == code, (method, path, bad)
        assert server.ran == []


@pytest.mark.parametrize("profile", ["local", "lan", "exposed"])
async def test_two_host_headers_are_none(profile: Profile) -> None:
    """Sent raw: no client library does it."""
    async with guarded(profile) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.base.rsplit(":", 1)[1]))
        writer.write(b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        await writer.wait_closed()
        assert server.ran == []


@pytest.mark.parametrize("name", TABLES)
async def test_bodies_that_a_form_can_send_are_refused(name: str) -> None:
    async with guarded("local", name) as server:
        for method, path in TABLES[name]:
            if method == "POST":
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
                    got = await server.ask(method, path, {"Content-Type": kind}, b"{}")
                    assert got == (415, "unsupported_media_type"), (path, kind)
                got = await server.ask(
                    method, path, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, b"\x1f\x8b"
                )
                assert got == (415, "unsupported_media_type"), path
        assert server.ran == []


ENOUGH: dict[str, set[str]] = {
    "public": {"", "chat", "read", "admin", "join"},
    "link": {"", "chat", "read", "admin", "join"},
    "models": {"chat", "read", "admin"},
    "chat": {"chat", "admin"},
    "read": {"read", "admin"},
    "forward": {"admin"},
    "files": {"join", "admin"},
    "peer": {"admin"},
    "admin": {"admin"},
    "join": set(),  # A key alone never registers: the wallet must sign.
    "lease": set(),
}


@pytest.mark.parametrize("profile", ["lan", "exposed"])
@pytest.mark.parametrize(("name", "method", "path"), ROUTES)
async def test_each_route_wants_its_scope(profile: Profile, name: str, method: str, path: str) -> None:
    enough = ENOUGH[TABLES[name][method, path]]
    kind = {"Content-Type": "application/octet-stream"} if path == "/v1/forward" else {}
    async with guarded(profile, name) as server:
        for scope in ("", *MADE):
            status, code = await server.ask(method, path, {**kind, **(bearer(scope) if scope else {})})
            if scope in enough:
                assert status == 200, (scope, code)
            else:
                assert (status, code) in {(401, "unauthorized"), (403, "wrong_scope"), (401, "unsigned")}
        assert len(server.ran) == len(enough)


WRONG_KEYS = ["Bearer x", "Basic YTpi", "Bearer " + "A" * 1000, "Bearer mnk_aaaaaaaa_" + "A" * 43]


@pytest.mark.parametrize("wrong", WRONG_KEYS, ids=["short", "basic", "long", "unknown"])
async def test_wrong_keys_are_no_keys(wrong: str) -> None:
    async with guarded("lan") as server:
        assert await server.ask("GET", "/v1/nodes", {"Authorization": wrong}) == (401, "unauthorized")


async def test_a_route_that_nobody_classified_is_an_admins() -> None:
    async with guarded("lan") as server:
        assert (await server.ask("GET", "/v1/new"))[0] == 401
        assert (await server.ask("GET", "/v1/new", bearer("read")))[0] == 403
        assert (await server.ask("GET", "/v1/new", bearer("admin")))[0] == 200
        assert (await server.ask("GET", "/nowhere"))[0] == 401


async def test_internal_headers_of_the_public_are_dropped() -> None:
    async with guarded("local") as server:
        await server.ask("POST", "/v1/chat/completions", {"X-Meshnet-Start-Layer": "3", "X-Other": "kept"}, b"{}")
    assert "X-Meshnet-Start-Layer" not in server.ran[0].headers
    assert server.ran[0].headers["X-Other"] == "kept"


async def test_a_relayed_caller_finds_us_under_our_wallet() -> None:
    async with guarded("local", "node", wallet=WALLET) as server:
        assert (await server.ask("GET", "/v1/link", {"Host": f"{WALLET}.7091.relay.example.relay"}))[0] == 200
        assert (await server.ask("GET", "/v1/link", {"Host": f"{'b' * 20}.7091.relay.example.relay"}))[0] == 403


@pytest.mark.parametrize(("host", "is_read"), [("127.0.0.1", True), ("0.0.0.0", False)])
async def test_a_relay_beyond_loopback_shows_its_figures_to_keys_alone(host: str, is_read: bool) -> None:
    config = RelayConfig(host=host, port=0, splice_port=0, trackers="a" * 20)
    relay = Relay(config, "a" * 20, "b" * 16, lambda: 0.0, lambda: NOW, lambda: "0" * 64, lambda: RING)
    await relay.open()
    base = f"http://127.0.0.1:{relay.url.rsplit(':', 1)[1]}"
    try:
        async with aiohttp.ClientSession() as http:
            for path in ("/v1/seats", "/metrics"):
                async with http.get(base + path) as response:
                    assert response.status == (200 if is_read else 401)
                async with http.get(base + path, headers=bearer("read")) as response:
                    assert response.status == 200
            async with http.get(base + "/healthz") as response:
                assert response.status == 200
            async with http.get(base + "/v1/relay", headers={"Origin": "https://evil.example"}) as response:
                assert response.status == 403
    finally:
        await relay.stop()


async def test_a_trackers_ticket_opens_a_nodes_layers_and_files_and_nothing_else() -> None:
    async with guarded("lan", "node", opens=lambda text: text == "good") as server:
        kind = {"Content-Type": "application/octet-stream"}
        for method, path in access.NODE:
            want = 200 if access.NODE[method, path] in ("forward", "files", "public", "link") else 401
            assert (await server.ask(method, path, {**kind, "X-Meshnet-Ticket": "good"}))[0] == want, path
            if access.NODE[method, path] in ("forward", "files"):
                assert (await server.ask(method, path, {**kind, "X-Meshnet-Ticket": "bad"}))[0] == 401


# What costs others: too many requests, bodies that never come.


async def test_one_address_is_slowed_and_its_proxy_names_it() -> None:
    proxies = (ip_network("127.0.0.0/8"),)
    rates: Rates[str] = Rates(1.0, 3)
    async with guarded("exposed", rates=rates, proxies=proxies) as server:
        for number in (1, 2):
            named = {"X-Forwarded-For": f"192.0.2.7, 192.0.2.{number}"}
            answers = [await server.ask("GET", "/healthz", named) for _ in range(4)]
            assert answers == [(200, "")] * 3 + [(429, "rate_limited")]
    async with guarded("exposed", rates=Rates(1.0, 3)) as server:
        answers = [await server.ask("GET", "/healthz", {"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(4)]
        assert answers[-1] == (429, "rate_limited"), "nobody else's word counts"
    async with guarded("lan", rates=Rates(1.0, 3)) as server:
        assert [await server.ask("GET", "/healthz") for _ in range(8)] == [(200, "")] * 8


async def test_one_address_holds_so_many_connections_open() -> None:
    async def is_open(server: Guarded) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.base.rsplit(":", 1)[1]))
        held.append(writer)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return bool(await asyncio.wait_for(reader.readline(), 10))
        except ConnectionError:
            return False

    held: list[asyncio.StreamWriter] = []
    async with guarded("exposed", connections_per_address=3) as server:
        assert [await is_open(server) for _ in range(5)] == [True] * 3 + [False] * 2
        held[0].close()
        await held[0].wait_closed()
        assert any([await is_open(server) for _ in range(20)]), "one went, another comes in"
    behind_proxy = guarded("exposed", connections_per_address=1, proxies=(ip_network("127.0.0.0/8"),))
    for others in (guarded("lan", connections_per_address=1), behind_proxy):
        async with others as server:
            assert [await is_open(server) for _ in range(3)] == [True] * 3, "a proxy's are not one host's"
    for writer in held:
        writer.close()


@pytest.mark.parametrize(("profile", "method", "path"), [("local", "POST", "/v1/chat/completions")])
async def test_a_body_that_never_comes_ends(profile: Profile, method: str, path: str) -> None:
    async with guarded(profile, body_s=0.05) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.base.rsplit(":", 1)[1]))
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == b"408"
        assert b"slow_body" in await asyncio.wait_for(reader.read(), 15)
        writer.close()
        assert server.ran == []


# Signed requests through the guard.


async def beat(
    server: Guarded,
    *,
    key: Ed25519PrivateKey = NODE,
    now: float = NOW,
    tracker: str = TRACKER,
    nonce: str = "",
    node_id: str = f"{WALLET}.0-9",
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    path, body = f"/v1/nodes/{node_id}/heartbeat", b"{}"
    given = headers or sign_request(
        key, "POST", server.base + path, body, tracker, now=now, nonce=nonce or secrets.token_hex(16)
    )
    return await server.ask("POST", path, given, body)


@pytest.mark.parametrize("profile", ["local", "lan", "exposed"])
async def test_the_nodes_own_heartbeat_passes_once(profile: Profile) -> None:
    async with guarded(profile) as server:
        assert await beat(server, nonce="r" * 32) == (200, "")
        assert await beat(server, nonce="r" * 32) == (403, "replayed")
        assert len(server.ran) == 1
        signed = caller_of(server.ran[0]).signed
        assert signed is not None
        assert signed.wallet == WALLET


async def test_forged_requests_run_no_handler() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    async with guarded("local") as server:
        assert await beat(server, key=other) == (403, "not_yours")
        assert await beat(server, tracker="another/boot0001") == (403, "wrong_tracker")
        assert await beat(server, tracker="tracker01/boot0000") == (403, "wrong_tracker")
        assert await beat(server, now=NOW - 61) == (403, "signature_expired")
        assert await beat(server, now=NOW + 61) == (403, "signature_expired")
        assert await beat(server, headers={"Content-Type": "application/json"}) == (401, "unsigned")
        assert (await server.ask("DELETE", f"/v1/nodes/{WALLET}.0-9"))[1] == "unsigned"
        assert server.ran == []
        assert await beat(server) == (200, ""), "and the node itself goes on"


@pytest.mark.parametrize("profile", ["local", "lan"])
async def test_a_captured_request_is_not_good_again_by_a_clock_that_was_set_back(profile: Profile) -> None:
    """Only while nobody was let in may somebody's signature say that our clock is wrong."""
    mono, jump_s = [0.0], [0.0]
    steady = SteadyClock(lambda: NOW + mono[0] + jump_s[0], lambda: mono[0])
    changes = {"now": lambda: mono[0], "wall": steady, "settle": steady.settle_for, "hold": steady.hold}
    async with guarded(profile, **changes) as server:
        url = server.base + "/v1/nodes"
        jump_s[0] = 7200.0  # It was slow at the start, and was set right.
        assert await beat(server, now=NOW) == (200, ""), "strangers can sign, too: nobody is let in by it"
        for code in ("signature_expired", ""):
            join = sign_request(NODE, "POST", url, b"{}", TRACKER, now=NOW + 7200, nonce=secrets.token_hex(16))
            assert (await server.ask("POST", "/v1/nodes", {**join, **bearer("join")}, b"{}"))[1] == code
        captured = sign_request(
            NODE, "POST", f"{url}/{WALLET}.0-9/heartbeat", b"{}", TRACKER, now=steady(), nonce="c" * 32
        )
        assert await beat(server, headers=captured) == (200, "")
        mono[0] = 3600.0
        jump_s[0] -= 3600.0
        assert await beat(server, headers=captured) == (403, "signature_expired")
        assert await beat(server, headers=captured) == (403, "signature_expired")
        assert await beat(server, now=NOW + 7200 + 3600) == (200, ""), "the node itself goes on"


async def test_a_refusal_says_which_tracker_to_sign_for() -> None:
    async with guarded("local") as server, server.http.delete(f"{server.base}/v1/nodes/{WALLET}.0-9") as response:
        assert response.headers[TRACKER_HEADER] == TRACKER


@pytest.mark.parametrize("profile", ["lan", "exposed"])
async def test_joining_takes_a_token_or_the_allow_list(profile: Profile) -> None:
    async def join(server: Guarded, extra: dict[str, str]) -> tuple[int, str]:
        url = server.base + "/v1/nodes"
        headers = sign_request(NODE, "POST", url, b"{}", TRACKER, now=NOW, nonce=secrets.token_hex(16))
        return await server.ask("POST", "/v1/nodes", {**headers, **extra}, b"{}")

    async with guarded(profile) as server:
        assert await join(server, {}) == (401, "unauthorized")
        assert await join(server, bearer("chat")) == (403, "wrong_scope")
        assert await join(server, bearer("join")) == (200, "")
    async with guarded(profile, join_allow=frozenset({WALLET})) as server:
        assert await join(server, {}) == (200, "")


def test_names_are_the_ones_we_listen_on_and_are_told() -> None:
    assert {"mesh.example", "10.0.0.5", "localhost"} <= guarded_names("10.0.0.5", "Mesh.example, other.example")


# Every daemon's real routes are classified.


async def test_the_trackers_routes_are_all_classified() -> None:
    async with run_tracker() as running:
        routes = Handlers(running.tracker, Guard("local", {}, KeyRing, time.monotonic, time.time)).routes()
    assert {(r.method, r.path) for r in routes} == set(access.TRACKER)


async def test_the_nodes_routes_are_all_classified() -> None:
    holding = Holding(NodeId(f"{WALLET}.0-9"), "boot-0001", "m", "0123456789abcdef", Shard(0, 9), 30, 8, 64, "float32")
    async with aiohttp.ClientSession() as http:
        node = Node(Identity(holding), http)
        files = FileServer(Store(Path("/nonexistent")), time.monotonic)
        app = node_app(node, "n1", lambda: status_of(node, "n1", (0, 0), (), True), files)
        await node.close()
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    assert {route for route in routes if route[0] != "HEAD"} == set(access.NODE)


def test_the_relays_routes_are_all_classified() -> None:
    relay = Relay(RelayConfig(), "a" * 20, "b" * 16, lambda: 0.0, lambda: 0.0, lambda: "0" * 64)
    assert {(r.method, r.path) for r in relay.routes()} == set(access.RELAY)


# The key file, read again when it changes.


def test_the_key_file_is_followed_and_fails_closed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeyFile(path)
    assert not keys().has_live()
    path.write_bytes(encode_keys(RING))
    path.chmod(0o600)
    assert keys().find(MADE["chat"][0]) is not None
    fresh = tmp_path / "new"
    fresh.write_bytes(encode_keys(RING.revoke("chat", 1.0)))
    fresh.chmod(0o600)
    fresh.replace(path)
    assert keys().find(MADE["chat"][0]) is None
    assert keys().find(MADE["read"][0]) is not None
    broken = tmp_path / "broken"
    broken.write_bytes(b"{")
    broken.chmod(0o600)
    broken.replace(path)
    assert not keys().has_live()
    with pytest.raises(StartError):
        KeyFile(path)


def test_a_key_file_that_others_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(encode_keys(RING))
    path.chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        KeyFile(path)
