"""How a node comes to its layers: given by its owner, or by the tracker for the memory that it may use.

Asks and checks before anything is loaded; whatever cannot be is one sentence that says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from daemons.node.refusal import refusal
from daemons.node.settings import NodeSettings
from meshnet.domain.budget import format_bytes, memory_need, usable_bytes
from meshnet.domain.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    MeshnetError,
    NotFound,
    StartError,
    Unreachable,
    WeightsError,
)
from meshnet.domain.nodes import HardwareProfile
from meshnet.domain.shards import Shard
from meshnet.weights.cost import model_cost
from meshnet.weights.fetch import FileSource, Wanted, open_model
from meshnet.weights.store import Store, StoredModel
from meshnet.wire.demand import AssignmentRequest, AssignmentResponse
from meshnet.wire.messages import HardwareMessage

log = logging.getLogger(__name__)

UNMEASURED_TPS = 1.0
"""What a machine that never measured itself is taken for (ADR-0013)."""
DEFAULT_KV_BYTES = 1 << 30
"""For a node whose owner set neither --kv-budget nor --memory: 8 full contexts of a 135M model need 2.8 GiB, ordinary
chats a tenth. Memory is used only as tokens fill it."""


class Tracker(Protocol):
    """What a joining node asks: ``meshnet.client.tracker.TrackerClient``, or one that a test scripts."""

    @property
    def url(self) -> str: ...
    async def assign(self, request: AssignmentRequest) -> AssignmentResponse: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What this node is to hold, and how much memory that may take. ``memory_budget_bytes`` 0: nobody set one."""

    model: StoredModel
    shard: Shard
    kv_budget_bytes: int
    memory_budget_bytes: int
    sources: tuple[FileSource, ...]


@dataclass(frozen=True, slots=True)
class Joiner:
    """One start's means: the store, the tracker, ``dial`` for machines that hold files, and the machine itself."""

    settings: NodeSettings
    store: Store
    wallet: str
    tracker: Tracker
    dial: Callable[[str], FileSource]
    hardware: HardwareProfile
    keep_ticket: Callable[[str, str], None] = lambda wallet, ticket: None

    async def find_work(self) -> Work:
        """Raises StartError, NotFound or WeightsError: one sentence each."""
        settings = self.settings
        budget = usable_bytes(settings.memory_bytes(), self.hardware.ram_available_bytes)
        if settings.shard:
            return await self._given(settings.checked_shard(), budget)
        answer = await self._ask(budget)
        # An own address of the tracker's may be none that reaches it from here.
        sources = tuple(self.dial(url) for url in dict.fromkeys([self.tracker.url, *answer.sources]))
        model = await open_model(self.store, Wanted(answer.model_key, answer.revision), sources)
        log.info(
            "assigned model=%s shard=%d-%d why=%s", answer.model_key, answer.shard_start, answer.shard_end, answer.why
        )
        shard = Shard(answer.shard_start, answer.shard_end)
        return Work(model, shard, settings.kv_bytes() or answer.kv_bytes, budget, sources)

    async def _given(self, shard: Shard, budget: int) -> Work:
        """The owner's layers; what the store lacks of them is fetched from whoever has it."""
        settings = self.settings
        sources: tuple[FileSource, ...] = ()
        try:
            model = self.store.open(settings.model)
            if model.missing(shard):
                sources = await self._sources(model.manifest.revision, budget)
        except NotFound as absent:
            sources = await self._sources(None, budget)
            try:
                model = await open_model(self.store, Wanted(settings.model), sources)
            except (WeightsError, NotFound, Conflict):
                raise absent from None
        self._require(model, shard, bool(sources))
        if not settings.memory:
            return Work(model, shard, settings.kv_bytes() or DEFAULT_KV_BYTES, 0, sources)
        return Work(model, shard, self._fitting_kv(model, shard, budget), budget, sources)

    def _require(self, model: StoredModel, shard: Shard, fetchable: bool) -> None:
        try:
            missing = model.missing(shard)
        except InvalidRequest as error:
            raise StartError(error.message) from None
        if missing and not fetchable:
            names = ", ".join(entry.name for entry in missing[:3])
            raise StartError(
                f"{self.settings.model} lacks {len(missing)} files for layers {shard} ({names}), and no tracker "
                "answers to fetch them from. Start the tracker, or pull the model again."
            )

    def _fitting_kv(self, model: StoredModel, shard: Shard, budget: int) -> int:
        """KV bytes that --memory leaves beside these layers. Raises StartError saying what is short."""
        cost = model_cost(model.manifest, model.config, self.settings.dtype)
        need = memory_need(cost, shard, self.settings.promise())
        kv = self.settings.kv_bytes() or need.kv_bytes
        total = need.weights_bytes + need.workspace_bytes + kv
        if total > budget:
            raise StartError(
                f"Layers {shard} of {cost.model_key} need {format_bytes(total)} (weights "
                f"{format_bytes(need.weights_bytes)}, KV {format_bytes(kv)}, workspace "
                f"{format_bytes(need.workspace_bytes)}); {format_bytes(budget)} may be used, "
                f"{format_bytes(total - budget)} are short. Give more --memory, fewer layers, fewer --sessions or a "
                "shorter --context."
            )
        return kv

    async def _ask(self, budget: int) -> AssignmentResponse:
        try:
            return await self._assigned(budget)
        except (Unreachable, DeadlineExceeded) as error:
            raise StartError(
                f"{error.message} Without it nobody says which layers to hold: start it, check --tracker, or give "
                "--model and --shard yourself."
            ) from None
        except MeshnetError as error:
            raise (refusal(error) or StartError(f"The tracker gives no layers: {error.message}")) from None

    async def _sources(self, revision: str | None, budget: int) -> tuple[FileSource, ...]:
        """The tracker, and whoever it says has the same weights; none when it does not answer."""
        urls: Sequence[str] = ()
        try:
            answer = await self._assigned(budget, self.settings.checked_shard())
            urls = answer.sources if revision in (None, answer.revision) else ()
        except (Unreachable, DeadlineExceeded):
            return ()
        except MeshnetError as error:
            if (refused := refusal(error)) is not None:
                raise refused from None
            log.info("no sources named model=%s reason=%s", self.settings.model, error.message)
        return tuple(self.dial(url) for url in dict.fromkeys([self.tracker.url, *urls]))

    async def _assigned(self, budget: int, shard: Shard | None = None) -> AssignmentResponse:
        """The tracker's answer, and its leave to fetch from whom it names. Raises MeshnetError."""
        settings, promise = self.settings, self.settings.promise()
        answer = await self.tracker.assign(
            AssignmentRequest(
                wallet=self.wallet,
                name=settings.name,
                memory_budget_bytes=budget,
                dtype=settings.dtype,
                model_key=settings.model or None,
                shard_start=shard.start if shard else None,
                shard_end=shard.end if shard else None,
                sessions=promise.sessions,
                context_tokens=promise.context_tokens,
                benchmark_tokens_per_sec=UNMEASURED_TPS,
                hardware=msgspec.convert(msgspec.to_builtins(self.hardware), HardwareMessage),
            )
        )
        for wallet, ticket in answer.tickets.items():
            self.keep_ticket(wallet, ticket)
        return answer
