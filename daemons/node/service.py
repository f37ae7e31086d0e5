"""One node, wired: links, sessions, worker, its part as a hop and as a head. Everything but the process around it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import msgspec

from daemons.kit.link import Link, Links
from daemons.kit.proof import Prover
from daemons.kit.tasks import Tasks, every
from daemons.node.deadlines import Deadlines
from daemons.node.dialback import DialBack
from daemons.node.driver import Driver
from daemons.node.hops import Hops
from daemons.node.identity import Identity
from daemons.node.sessions import Sessions
from daemons.node.trust import Trust
from daemons.node.worker import Worker
from meshnet.domain.engine import ShardEngine, TextCodec
from meshnet.domain.errors import FrameError, NodeFailed
from meshnet.domain.nodes import NodeState
from meshnet.wire.frames import Hidden
from meshnet.wire.messages import (
    Cancel,
    Close,
    Dial,
    Failed,
    Generate,
    Open,
    Opened,
    Probe,
    Probed,
    Progress,
    Tokens,
)

log = logging.getLogger(__name__)

SWEEP_S = 5.0
"""Between two looks for idle sessions: small beside their limit of a minute."""
ENCODER_THREADS = 2
"""A long prompt takes a second to tokenize; a second thread lets a short one pass it."""


class Node:
    """``engine`` comes later, by ``load``: until then every request is answered with code "loading"."""

    def __init__(
        self,
        identity: Identity,
        http: aiohttp.ClientSession,
        deadlines: Deadlines | None = None,
        now: Callable[[], float] = time.monotonic,
        trust: Trust | None = None,
        prover: Prover | None = None,
    ) -> None:
        """Without ``trust`` and ``prover`` everybody is taken for who he says and served without a ticket."""
        deadlines = deadlines or Deadlines()
        self.identity = identity
        self.deadlines = deadlines
        self.started_at = now()
        self.now = now
        self.loaded = False
        self.ready = False
        self.tasks = Tasks("node")
        self.sessions = Sessions()
        self.links = Links(identity.hello, self._on_message, self._on_closed, http, now, prover)
        trust = trust or Trust(time.time, required=False)
        self._encoder = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="encode")
        self.worker = Worker(lambda computed: self.hops.on_results(computed))
        self.hops = Hops(identity, self.links, self.worker, self.sessions, self.tasks, deadlines, now, trust)
        self.driver = Driver(identity, self.links, self.hops, self.tasks, deadlines, self._encoder, now, trust)
        self.hops.head = self.driver
        self.dial_back = DialBack(http, self.tasks)

    @property
    def state(self) -> NodeState:
        if self.identity.draining:
            return "draining"
        return "ready" if self.ready else "loading"

    async def load(self, make_engine: Callable[[], tuple[ShardEngine, TextCodec | None]]) -> ShardEngine:
        """Start the worker and make the engine in it. Raises what ``make_engine`` raises."""
        codecs: list[TextCodec | None] = []

        def make() -> ShardEngine:
            engine, codec = make_engine()
            codecs.append(codec)
            return engine

        engine = await self.worker.start(make)
        self.driver.codec = codecs[0]
        self.loaded = True
        self.tasks.start(every(self._sweep, lambda: SWEEP_S, "sweep"), "sweep")
        return engine

    async def drain(self) -> None:
        """Take nothing new and let what is nearly done finish, for ``drain_s``; then give the rest up, saying why."""
        self.identity.draining = True
        try:
            async with asyncio.timeout(self.deadlines.drain_s):
                await self.sessions.none_left.wait()
        except TimeoutError:
            log.info("stopping with sessions open sessions=%d", len(self.sessions))
        self.driver.stop_all("shutting_down")
        error = NodeFailed(f"{self.identity.node_id} stops.", node_id=self.identity.node_id, code="shutting_down")
        for session in self.sessions:
            self.hops.fail(session, error)

    async def close(self) -> None:
        await self.links.close()
        await self.tasks.close()
        await self.worker.stop()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def _sweep(self) -> None:
        self.hops.drop_idle()

    def _on_message(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        match message:
            case Hidden():
                self.hops.on_hidden(link, message)
            case Tokens():
                self.driver.on_tokens(link, message)
            case Progress():
                self.driver.on_progress_frame(link, message)
            case Cancel() if link.peer.role == "tracker":
                self.driver.on_cancel(link, message)
            case Close() | Cancel():
                self.hops.on_end(link, message)
            case _:
                self._on_rare(link, message)

    def _on_rare(self, link: Link, message: msgspec.Struct) -> None:
        match message:
            case Generate():
                self.driver.on_generate(link, message)
            case Open():
                self.hops.on_open(link, message)
            case Opened():
                self.driver.on_opened(link, message)
            case Probe() if link.peer.role == "tracker":
                self.driver.on_probe(link, message)
            case Probe():
                self.hops.on_probe(link, message)
            case Probed():
                self.driver.on_probed(link, message)
            case Failed():
                self.driver.on_failed_frame(link, message)
            case Dial() if link.peer.role == "tracker":
                self.dial_back.on_dial(link, message)
            case _:
                raise FrameError(f"a node takes no {type(message).__name__}")

    def _on_closed(self, link: Link) -> None:
        self.driver.on_link_closed(link)
        self.hops.on_link_closed(link)
