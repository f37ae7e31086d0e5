"""The node's lease: registered, kept by heartbeats, taken again when lost, left at the end. Never shares the
computing thread, so a busy or loading node is not a dead one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

import msgspec

from daemons.kit import host
from daemons.node.refusal import refusal
from daemons.node.service import Node
from daemons.node.wallet import WalletKey
from meshnet.domain.engine import EngineSpeed
from meshnet.domain.errors import Conflict, MeshnetError, NotFound
from meshnet.domain.nodes import Accelerator, HardwareProfile
from meshnet.wire.messages import (
    AcceleratorMessage,
    HardwareMessage,
    HeartbeatRequest,
    HeartbeatResponse,
    MoveAdvice,
    RegisterRequest,
    RegisterResponse,
)

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 5.0
"""A tracker that returns sees every node within 5 s, and their full jitter spreads them over that time."""
JITTER = 0.2
"""Heartbeats come up to 20 % early, so that nodes started together drift apart; never late."""
LEAVE_S = 1.0
"""A stop does not wait longer for a tracker that may be gone itself."""


class Tracker(Protocol):
    """What a node asks of a tracker: ``meshnet.client.tracker.TrackerClient``, or one that a test scripts."""

    async def register(self, request: RegisterRequest) -> RegisterResponse: ...
    async def heartbeat(self, node_id: str, request: HeartbeatRequest) -> HeartbeatResponse: ...
    async def leave(self, node_id: str, epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Advertised:
    """What a registration says beside the holding."""

    name: str
    url: str
    hardware: HardwareProfile
    kv_budget_bytes: int
    memory_budget_bytes: int
    weights_bytes: int
    loading_total_bytes: int
    """Of the weights: those to read, and those to fetch first."""
    rebalance: bool = False
    is_public: bool = False
    """``url`` is no loopback address: it may be tried while we are behind a relay."""
    payee: str = ""


class Announcer:
    """Run ``run``; tell it about news with ``measured`` and ``wake``."""

    def __init__(
        self,
        node: Node,
        tracker: Tracker,
        wallet: WalletKey,
        advertised: Advertised,
        loading_done_bytes: Callable[[], int],
        rng: Random,
        on_advice: Callable[[MoveAdvice], None] = lambda advice: None,
        address: Callable[[], str] | None = None,
        on_registered: Callable[[RegisterResponse], None] = lambda answer: None,
        on_beat: Callable[[HeartbeatResponse], None] = lambda answer: None,
    ) -> None:
        """``on_advice`` hears of the tracker's advice, once each, if this node said that it follows any. ``address``
        gives where we can be reached now, empty while nowhere; without it, it is the advertised url. ``on_registered``
        hears what the tracker says of itself, ``on_beat`` what it says of us."""
        self._node = node
        self._tracker = tracker
        self._wallet = wallet
        self._advertised = advertised
        self._loading_done_bytes = loading_done_bytes
        self._rng = rng
        self._on_advice = on_advice
        self._address = address or (lambda: advertised.url)
        self._registered_url = ""
        self._on_registered = on_registered
        self._on_beat = on_beat
        self._advised: MoveAdvice | None = None
        self._speed: EngineSpeed | None = None
        self._accelerators: tuple[Accelerator, ...] = ()
        self._wake = asyncio.Event()
        self._interval_s = 5.0
        self._failures = 0
        self.registered = False
        self._was_registered = False
        self._left = False

    def measured(self, speed: EngineSpeed, accelerators: Sequence[Accelerator] = ()) -> None:
        """The shard is loaded and this fast."""
        self._speed = speed
        self._accelerators = tuple(accelerators)
        self._wake.set()

    def wake(self) -> None:
        """Tell the tracker now, not at the next heartbeat."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises as ``tick``."""
        while True:
            await self.tick()
            try:
                async with asyncio.timeout(self.delay_s()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def tick(self) -> None:
        """One heartbeat, or one try to register. Raises StartError when the tracker refuses what this start brings;
        once registered, a node only tries again."""
        if self._left:
            return
        try:
            url = self._address()
            if self.registered and url in ("", self._registered_url):
                await self._beat()
            if url and (not self.registered or url != self._registered_url):
                await self._register(url)
            self._failures = 0
        except MeshnetError as error:
            if not self._was_registered and (refused := refusal(error)) is not None:
                raise refused from None
            self._failures += 1
            if self._failures in (1, 2, 4, 8) or self._failures % 16 == 0:
                log.warning("tracker not told failures=%d reason=%s", self._failures, error.message)

    def delay_s(self) -> float:
        """Until the next tick: a heartbeat's interval, or full jitter over a growing time after failures."""
        if self._failures == 0:
            return self._interval_s * (1 - JITTER * self._rng.random())
        most = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** min(self._failures, 10))
        return most * self._rng.random()

    async def leave(self) -> None:
        """Give the lease back, if the tracker answers."""
        self._left = True
        if not self.registered:
            return
        self.registered = False
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._tracker.leave(self._node.identity.node_id, self._node.identity.epoch)
        except (TimeoutError, MeshnetError) as error:
            log.info("tracker not told of the stop reason=%s", getattr(error, "message", "it does not answer"))

    async def _beat(self) -> None:
        try:
            answer = await self._tracker.heartbeat(self._node.identity.node_id, self.heartbeat())
        except (NotFound, Conflict) as error:
            log.info("lease lost reason=%s", error.message)
            self.registered = False
            return
        self._on_beat(answer)
        if answer.advice is not None and answer.advice != self._advised:
            self._advised = advice = answer.advice
            log.info("tracker advises shard=%d-%d why=%s", advice.shard_start, advice.shard_end, advice.why)
            if self._advertised.rebalance:
                self._on_advice(advice)

    async def _register(self, url: str) -> None:
        answer = await self._tracker.register(self.registration(url))
        self._registered_url = url
        self._on_registered(answer)
        self._node.identity.epoch = answer.epoch
        self._interval_s = min(max(answer.heartbeat_interval_s, 0.1), 60.0)
        self.registered = self._was_registered = True
        log.info("registered node=%s tracker=%s epoch=%d", answer.node_id, answer.tracker_id, answer.epoch)

    def registration(self, url: str) -> RegisterRequest:
        holding, said = self._node.identity.holding, self._advertised
        speed = self._speed or EngineSpeed(1.0, 0.0, 0.0)
        return RegisterRequest(
            wallet=self._wallet.wallet,
            public_key=self._wallet.public_key.hex(),
            name=said.name,
            url=url,
            model_key=holding.model_key,
            revision=holding.revision,
            n_layers=holding.n_layers,
            shard_start=holding.shard.start,
            shard_end=holding.shard.end,
            dtype=holding.dtype,  # pyright: ignore[reportArgumentType] (settings allow no other)
            hidden_size=holding.hidden_size,
            context_length=holding.context_length,
            state=self._node.state,
            boot=holding.boot,
            benchmark_tokens_per_sec=speed.decode_tps,
            benchmark_batch8_tokens_per_sec=speed.decode_batch8_tps,
            prefill_tokens_per_sec=speed.prefill_tps,
            benchmark_spread=speed.spread,
            tail_layers=speed.extra.get("tail_layers", 0.0),
            kv_budget_bytes=said.kv_budget_bytes,
            memory_budget_bytes=said.memory_budget_bytes,
            weights_bytes=said.weights_bytes,
            rebalance=said.rebalance,
            direct_url=said.url if url.startswith("relay://") and said.is_public else "",
            payee=said.payee,
            hardware=_hardware(replace(said.hardware, ram_available_bytes=host.available_bytes())),
        )

    def heartbeat(self) -> HeartbeatRequest:
        node, worker = self._node, self._node.worker
        speed = self._speed
        return HeartbeatRequest(
            epoch=node.identity.epoch,
            state=node.state,
            queue_depth=worker.queue_depth,
            in_flight=len(node.sessions),
            kv_free_bytes=max(0, worker.kv.budget_bytes - worker.kv.reserved_bytes),
            ram_available_bytes=host.available_bytes(),
            rss_bytes=host.rss_bytes(),
            loading_done_bytes=self._loading_done_bytes(),
            loading_total_bytes=self._advertised.loading_total_bytes,
            observed_tokens_per_sec=node.hops.decode_rate(),
            benchmark_tokens_per_sec=None if speed is None else speed.decode_tps,
            benchmark_batch8_tokens_per_sec=None if speed is None else speed.decode_batch8_tps,
            prefill_tokens_per_sec=None if speed is None else speed.prefill_tps,
            benchmark_spread=None if speed is None else speed.spread,
            tail_layers=None if speed is None else speed.extra.get("tail_layers"),
            matrix_gflops=None if speed is None else speed.extra.get("matrix_gflops"),
            memory_gb_s=None if speed is None else speed.extra.get("memory_gb_s"),
            accelerators=None if speed is None else tuple(map(_accelerator, self._accelerators)),
        )


def _accelerator(found: Accelerator) -> AcceleratorMessage:
    return AcceleratorMessage(found.name[:128] or "unknown", found.kind, found.memory_bytes)


def _hardware(profile: HardwareProfile) -> HardwareMessage:
    return msgspec.convert(msgspec.to_builtins(profile), HardwareMessage)
