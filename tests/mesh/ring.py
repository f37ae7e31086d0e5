"""Whole meshes in one process: real servers on free ports, real links, a scripted tracker, fake engines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web

from daemons.kit.link import Link, Links
from daemons.kit.web import Site, make_app, serve
from daemons.node.deadlines import Deadlines
from daemons.node.identity import Holding, Identity
from daemons.node.service import Node
from meshnet.domain.chat import ChatMessage, GenerationRequest, Sampling
from meshnet.domain.engine import ShardEngine, TextCodec
from meshnet.domain.ids import Wallet, make_node_id
from meshnet.domain.shards import parse_shard
from meshnet.wire import api
from meshnet.wire.frames import Hidden
from meshnet.wire.messages import Cancel, Delta, Failed, Finished, Generate, Hello, HopMessage, Probe, Probed
from tests.mesh.fake_engine import FakeCodec, FakeEngine, facts

T = TypeVar("T")

WAIT_S = 20.0
"""Until a test gives up: far beyond what anything here takes."""
QUICK = Deadlines(stall_s=0.3, stall_steps=1.0, probe_s=0.15, open_s=1.5, connect_s=1.0, drain_s=0.1)


@dataclass(slots=True)
class RunningNode:
    node: Node
    engine: FakeEngine
    """The fake one, where the node was not given another."""
    site: Site
    epoch: int = 1

    @property
    def node_id(self) -> str:
        return self.node.identity.node_id

    def hop(self, start: int, end: int) -> HopMessage:
        return HopMessage(self.node_id, self.site.url, start, end, self.epoch)


@dataclass(slots=True)
class Answer:
    """What the tracker got of one attempt."""

    deltas: list[Delta] = field(default_factory=list)
    end: asyncio.Future[Finished | Failed] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    async def tokens(self, count: int) -> None:
        while len(self.token_ids) < count and not self.end.done():
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), WAIT_S)

    async def finished(self, within_s: float = WAIT_S) -> Finished:
        end = await asyncio.wait_for(asyncio.shield(self.end), within_s)
        assert isinstance(end, Finished), end
        return end

    async def failed(self) -> Failed:
        end = await asyncio.wait_for(asyncio.shield(self.end), WAIT_S)
        assert isinstance(end, Failed), end
        return end


class Scripted:
    """A peer that speaks the wire and does only what the test says: it looks like a node of this shard."""

    def __init__(self, http: aiohttp.ClientSession, peer_id: str) -> None:
        self.node_id = peer_id
        self.got: list[Hidden | msgspec.Struct] = []
        self.stirred = asyncio.Event()
        hello = Hello(peer_id=peer_id, role="node", boot="boot-of-script", wire_version=api.WIRE_VERSION)
        self.links = Links(lambda: hello, self._on_message, lambda link: self.stirred.set(), http, time.monotonic)
        self.site: Site

    def hop(self, start: int, end: int) -> HopMessage:
        return HopMessage(self.node_id, self.site.url, start, end, 1)

    def tell(self, peer_id: str, message: msgspec.Struct | bytes) -> None:
        link = self.links.get(peer_id)
        assert link is not None
        link.post(message)

    async def heard(self, kind: type[T]) -> T:
        """The first message of this kind, once it is there."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for message in self.got:
                    if isinstance(message, kind):
                        return message
                self.stirred.clear()
                await self.stirred.wait()

    def _on_message(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        self.got.append(message)
        self.stirred.set()


class Mesh:
    """Nodes and a tracker that does what the test says."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._answers: dict[tuple[int, int], Answer] = {}
        self._numbers = itertools.count(1)
        self._probed: asyncio.Future[Probed]
        self.model = facts()
        self.nodes: list[RunningNode] = []
        self.hello = Hello(peer_id="tracker.test", role="tracker", boot="boot-tracker", wire_version=api.WIRE_VERSION)
        self.links = Links(lambda: self.hello, self._on_message, lambda link: None, http, time.monotonic)

    async def add(
        self,
        shard: str,
        *,
        kv_budget: int = 1 << 24,
        deadlines: Deadlines = QUICK,
        made: tuple[ShardEngine, TextCodec | None] | None = None,
    ) -> RunningNode:
        """A running node with a fake engine, or with ``made``."""
        number = len(self.nodes)
        held, model = parse_shard(shard), self.model
        wallet = Wallet(f"wallet{number:02d}")
        holding = Holding(
            make_node_id(wallet, held),
            f"boot-{number:04d}",
            model.model_key,
            model.revision,
            held,
            model.n_layers,
            model.hidden_size,
            model.context_length,
            model.dtype,
        )
        node = Node(Identity(holding, epoch=1), self._http, deadlines)
        engine = FakeEngine(held, kv_budget)
        site = await serve(make_app([web.get(api.LINK, node.links.accept)], 1 << 20), "127.0.0.1", 0)
        await node.load(lambda: made or (engine, FakeCodec() if held.start == 0 else None))
        node.ready = True
        self.nodes.append(RunningNode(node, engine, site))
        return self.nodes[-1]

    @contextlib.asynccontextmanager
    async def scripted(self, shard: str, wallet: str = "walletzz") -> AsyncIterator[Scripted]:
        peer = Scripted(self._http, f"{wallet}.{shard}")
        peer.site = await serve(make_app([web.get(api.LINK, peer.links.accept)], 1 << 20), "127.0.0.1", 0)
        try:
            yield peer
        finally:
            await peer.links.close()
            await peer.site.close()

    def route(self, *nodes: RunningNode) -> tuple[HopMessage, ...]:
        hops, start = [], 0
        for running in nodes:
            end = running.engine.shard.end
            hops.append(running.hop(start, end))
            start = end + 1
        return tuple(hops)

    async def ask(
        self,
        hops: Sequence[HopMessage],
        prompt: str = "what is a mesh",
        *,
        max_tokens: int | None = 12,
        stop: tuple[str, ...] = (),
        change: Callable[[Generate], Generate] = lambda ask: ask,
    ) -> Answer:
        request = GenerationRequest(
            (ChatMessage("user", prompt),), Sampling(temperature=0), max_tokens=max_tokens, stop=stop
        )
        number = next(self._numbers)
        model = self.model
        ask = change(
            Generate(
                session=number,
                attempt=0,
                call_id=f"call-{number}",
                model_key=model.model_key,
                revision=model.revision,
                dtype="float32",
                hops=tuple(hops),
                request=request,
                deadline_s=WAIT_S,
            )
        )
        answer = self._answers[(ask.session, ask.attempt)] = Answer()
        link = await self.links.to(hops[0].node_id, hops[0].url)
        link.post(ask)
        return answer

    def cancel(self, hops: Sequence[HopMessage], session: int, attempt: int = 0) -> None:
        link = self.links.get(hops[0].node_id)
        assert link is not None
        link.post(Cancel(session, attempt, "client gone"))

    async def probe(self, running: RunningNode, session: int, attempt: int = 0) -> bool:
        """Ask as the tracker does whether this node has the answer in hand."""
        self._probed = asyncio.get_running_loop().create_future()
        (await self.links.to(running.node_id, running.site.url)).post(Probe(session, attempt, step=0))
        return (await asyncio.wait_for(self._probed, WAIT_S)).known

    async def kill(self, running: RunningNode) -> None:
        """As kill -9 looks to the others: every socket closes and not a word is said."""
        for session in running.node.sessions:
            running.node.hops.drop(session.key)
        await running.node.links.close()

    async def all_free(self, within_s: float = 1.0, *, but: Sequence[RunningNode] = ()) -> None:
        """Every node has no session and no KV reserved; asked again and again until then."""
        async with asyncio.timeout(within_s):
            while any(  # noqa: ASYNC110 (other threads free)
                len(n.node.sessions) or n.node.worker.kv.sessions or len(n.node.driver)
                for n in self.nodes
                if n not in but
            ):
                await asyncio.sleep(0.005)

    def _on_message(self, link: Link, message: Hidden | msgspec.Struct) -> None:
        if isinstance(message, Probed):
            self._probed.set_result(message)
            return
        assert isinstance(message, Delta | Finished | Failed), message
        answer = self._answers[(message.session, message.attempt)]
        if isinstance(message, Delta):
            answer.deltas.append(message)
        else:
            answer.end.set_result(message)
        answer.arrived.set()

    async def close(self) -> None:
        await self.links.close()
        for running in self.nodes:
            running.engine.gate.set()
            await running.node.close()
            await running.site.close()


@contextlib.asynccontextmanager
async def open_mesh() -> AsyncIterator[Mesh]:
    async with aiohttp.ClientSession() as http:
        mesh = Mesh(http)
        try:
            yield mesh
        finally:
            await mesh.close()


def resumed(session: int, attempt: int, prompt_ids: Sequence[int], produced: Sequence[int], chars_sent: int):
    """A change of ``ask`` that makes it go on with an earlier attempt's tokens."""

    def change(ask: Generate) -> Generate:
        return msgspec.structs.replace(
            ask,
            session=session,
            attempt=attempt,
            prompt_ids=tuple(prompt_ids),
            produced_ids=tuple(produced),
            chars_sent=chars_sent,
        )

    return change
