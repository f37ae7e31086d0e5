"""A whole tracker in this process, on a free port, with heads that answer by script."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.kit.signing import RequestSigner
from daemons.tracker.app import open_site
from daemons.tracker.gossip import Peer
from daemons.tracker.parts import Clock, Identity, Tracker
from daemons.tracker.settings import TrackerConfig
from daemons.tracker.store import Database, Saved
from daemons.tracker.supply import Means
from meshnet.client.files import FilesClient
from meshnet.client.http import Client, Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.ids import wallet_of
from meshnet.weights.store import Store
from meshnet.wire.messages import RegisterRequest
from tests.tracker.fake_head import FakeHead

MODEL = "smollm2-135m"
REVISION = "ab" * 16
QUICK: dict[str, Any] = {
    # What a test waits for must be short; what it must not reach, long.
    "timeout_first_token": 20.0,
    "timeout_between_tokens": 20.0,
    "spare_wait": 0.2,
    "route_rng": 7,
}


@functools.cache
def private_key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"key {number}".encode()).digest())


def public_key(number: int) -> str:
    return private_key(number).public_key().public_bytes_raw().hex()


class EverySigner:
    """Signs as whichever of our nodes a request speaks of: one client plays them all."""

    def __init__(self) -> None:
        draw = functools.partial(secrets.token_hex, 16)
        self._signers = {public_key(n): RequestSigner(private_key(n), time.time, draw) for n in range(1, 31)}

    def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        for key, signer in self._signers.items():
            if key.encode() in body or wallet_of(bytes.fromhex(key)) in f"{url}{body.decode()}":
                return signer.sign(method, url, body)
        return {}

    def learn(self, headers: Mapping[str, str]) -> bool:
        return any([signer.learn(headers) for signer in self._signers.values()])


def playing_nodes(http: Client, url: str) -> TrackerClient:
    return TrackerClient(http, url, Credentials(signer=EverySigner()))


def claim(number: int, start: int, end: int, url: str = "http://127.0.0.1:9", **fields: Any) -> RegisterRequest:
    """The registration of node ``number``."""
    key = public_key(number)
    values: dict[str, Any] = {
        "wallet": wallet_of(bytes.fromhex(key)),
        "public_key": key,
        "name": f"n{number}",
        "url": url,
        "model_key": MODEL,
        "revision": REVISION,
        "n_layers": 30,
        "shard_start": start,
        "shard_end": end,
        "hidden_size": 576,
        "context_length": 8192,
        "boot": "boot-of-fake",
        "benchmark_tokens_per_sec": 10.0,
    }
    return RegisterRequest(**{**values, **fields})


def node_id_of(number: int, start: int, end: int) -> str:
    return f"{wallet_of(bytes.fromhex(public_key(number)))}.{start}-{end}"


class Running:
    """A tracker that serves, its typed client, and its url."""

    def __init__(self, tracker: Tracker, url: str, client: TrackerClient, stack: contextlib.AsyncExitStack) -> None:
        self.tracker, self.url, self.client, self._stack = tracker, url, client, stack

    async def head(self, number: int, start: int = 0, end: int = 29, **fields: Any) -> FakeHead:
        """A live head, registered as ready."""
        head = await self._stack.enter_async_context(FakeHead(node_id_of(number, start, end)))
        await self.client.register(claim(number, start, end, head.url, **fields))
        return head

    @property
    def in_flight(self) -> int:
        return sum(self.tracker.planner.in_flight(node.node_id) for node in self.tracker.fleet.nodes())


@contextlib.asynccontextmanager
async def run_tracker(
    store: Store | None = None,
    database: Database | None = None,
    peers: Sequence[Peer] = (),
    boot: str = "trackerboot",
    wall: Callable[[], float] = time.time,
    **settings: Any,
) -> AsyncIterator[Running]:
    """``store`` holds the models on offer; ``database`` what is kept, by default nothing."""
    async with contextlib.AsyncExitStack() as stack:
        links = await stack.enter_async_context(aiohttp.ClientSession())
        http = await stack.enter_async_context(open_http())
        config = TrackerConfig(**{**QUICK, **settings})
        clock = Clock(time.monotonic, wall)
        saved = Saved() if database is None else database.load(config.max_calls_kept)
        store = store or Store(Path("/nonexistent"))
        means = Means(store, lambda url: FilesClient(http, url), Random(1), peers, database, saved)
        tracker = Tracker(config, Identity("trackerid", boot), links, clock, Random(config.route_rng), means)
        site = await open_site(tracker, "127.0.0.1", 0)
        stack.push_async_callback(tracker.close)
        stack.push_async_callback(site.close)
        stack.push_async_callback(tracker.stop)
        yield Running(tracker, site.url, playing_nodes(http, site.url), stack)


def body(**fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "seed": 1, **fields}
