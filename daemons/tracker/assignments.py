"""Joining machines and the work they get: what may be assigned, what it costs, who holds or will hold it.

The choice itself is ``domain.assignment``'s. Here lie the models on offer (this machine's store, and what live nodes
serve), the reservations, and the sources that a joining node fetches from.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from daemons.tracker.fleet import Change, Fleet
from meshnet.domain.assignment import Assignment, JoinRequest, ModelNeed, assign
from meshnet.domain.budget import DEFAULT_CONTEXT_TOKENS, ModelCost, Promise
from meshnet.domain.demand import DemandStats
from meshnet.domain.errors import InvalidRequest, MeshnetError, WeightsError
from meshnet.domain.ids import ModelKey, NodeId, is_model_key
from meshnet.domain.nodes import Node
from meshnet.domain.reservations import Reservation, Reservations
from meshnet.domain.shards import Shard
from meshnet.weights import layout
from meshnet.weights.cost import model_cost
from meshnet.weights.manifest import MANIFEST_NAME, Manifest, decode_manifest
from meshnet.weights.store import Store
from meshnet.wire.demand import AssignmentRequest, AssignmentResponse

log = logging.getLogger(__name__)

MAX_SOURCES = 8
"""Addresses a joiner is told: enough that one of them lives; each is asked in turn."""
MAX_LEARNED = 200
"""Manifests of nodes kept: about 100 KB each for a model of 80 layers."""
MAX_MANIFEST_BYTES, MAX_CONFIG_BYTES = 2 << 20, 1 << 18
"""Of a stranger: 4,096 layers are 1 MB of manifest, a config is a few KB. They are parsed between two calls' tokens."""
LEARN_S = 3.0
"""A node gives its manifest within this, or its model is not offered this time."""
LEARN_AT_ONCE = 8
"""Nodes asked together, so that one assignment waits for LEARN_S; answers may have 16 MiB until they are refused."""
FORGIVE_S = 60.0
"""A node that gave nothing good is not asked again within this, so that it delays one assignment and not each."""
UNUSABLE = (MeshnetError, ValueError, TypeError, ArithmeticError, RecursionError)
"""What reading a stranger's files may come to."""


class SmallFiles(Protocol):
    """Gives whole small files: ``daemons.kit.peerfiles.PeerFiles``, or one that a test scripts."""

    async def small(self, model_key: str, name: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Offer:
    """Exact weights that may be assigned, with all that a cost is computed from."""

    manifest: Manifest
    config: dict[str, Any]
    here: bool
    """Whether this machine's store has every file."""

    @property
    def key(self) -> tuple[str, str]:
        return self.manifest.model_key, self.manifest.revision


class Assignments:
    """``own_url`` is asked late: the tracker knows its address only once it listens."""

    def __init__(
        self,
        fleet: Fleet,
        demand: DemandStats,
        store: Store,
        now: Callable[[], float],
        now_wall: Callable[[], float],
        own_url: Callable[[], str],
        dial: Callable[[str], SmallFiles],
    ) -> None:
        self._fleet = fleet
        self._demand = demand
        self._store = store
        self._now = now
        self._now_wall = now_wall
        self._own_url = own_url
        self._dial = dial
        self._learned: dict[tuple[str, str], Offer] = {}
        self._learning = asyncio.Lock()
        self._not_before: dict[NodeId, float] = {}
        """When nodes that gave nothing good may be asked again."""
        self.reservations = Reservations()
        fleet.listen(self._on_change)

    async def assign(self, request: AssignmentRequest) -> AssignmentResponse:
        """Work for a machine, reserved until it registers. Raises NotFound (no such model), InvalidRequest
        (code="budget_too_small", saying how much is short)."""
        offers = await self.offers()
        # No await from here on: of ten that ask at once each must see what the ones before it were given.
        promise = Promise(request.context_tokens or DEFAULT_CONTEXT_TOKENS, request.sessions)
        join = JoinRequest(
            request.wallet,
            request.memory_budget_bytes,
            promise,
            request.benchmark_tokens_per_sec,
            ModelKey(request.model_key) if request.model_key else None,
            _named_shard(request),
        )
        chosen = assign(join, self._needs(offers, request.dtype))
        held = self.reservations.reserve(
            Reservation(request.wallet, chosen.model_key, chosen.revision, chosen.dtype, chosen.shard, join.throughput),
            self._now(),
        )
        log.info("assigned name=%s wallet=%s shard=%s why=%s", request.name, request.wallet, chosen.shard, chosen.why)
        offer = next(offer for offer in offers if offer.key == (chosen.model_key, chosen.revision))
        return self._response(chosen, offer, held.until - self._now())

    async def offers(self) -> list[Offer]:
        """What may be assigned: of a model that is served here only the weights that are; else the store's."""
        own = await asyncio.to_thread(self._own_offers)
        async with self._learning:  # Of ten that ask at once the first asks the strangers.
            await self._learn(own)
        live = self._live()
        served = {model_key for model_key, _ in live}
        known = {**self._learned, **{offer.key: offer for offer in own}}
        return [
            offer
            for key, offer in sorted(known.items())
            if key in live or (offer.here and offer.manifest.model_key not in served)
        ]

    def is_stored(self, model_key: str) -> bool:
        """Whether this machine could offer the model by itself."""
        return is_model_key(model_key) and (self._store.path(model_key) / MANIFEST_NAME).is_file()

    def cost(self, node: Node) -> ModelCost | None:
        """What the layers of this node's weights take, where its manifest is known."""
        offer = self._learned.get((node.model_key, node.revision))
        try:
            if offer is None:
                model = self._store.open(node.model_key)
                offer = Offer(model.manifest, model.config, here=True)
            if offer.manifest.revision != node.revision:
                return None
            return model_cost(offer.manifest, offer.config, node.dtype)
        except UNUSABLE:
            return None

    def _own_offers(self) -> list[Offer]:
        offers = []
        for manifest in self._store.models():
            try:
                model = self._store.open(manifest.model_key)
            except MeshnetError as error:
                log.warning("stored model is not offered model=%s reason=%s", manifest.model_key, error.message)
                continue
            whole = all((model.path / entry.name).is_file() for entry in manifest.files)
            offers.append(Offer(manifest, model.config, whole))
        return offers

    async def _learn(self, own: Sequence[Offer]) -> None:
        """Ask live nodes for the manifests of models that are not known yet; forget those that are gone."""
        now, live = self._now(), self._live()
        self._learned = {key: offer for key, offer in self._learned.items() if key in live}
        self._not_before = {node_id: at for node_id, at in self._not_before.items() if at > now}
        known = {offer.key for offer in own} | self._learned.keys()
        strangers = {
            (node.model_key, node.revision): node
            for node in self._fleet.nodes()
            if (node.model_key, node.revision) not in known
            and node.node_id not in self._not_before
            and _can_be_asked(node.url)
        }
        asked = list(strangers.values())[: min(LEARN_AT_ONCE, MAX_LEARNED - len(self._learned))]
        await asyncio.gather(*(self._learn_from(node) for node in asked))

    def _live(self) -> set[tuple[str, str]]:
        """Exact weights that nodes hold or were given."""
        live: set[tuple[str, str]] = {(node.model_key, node.revision) for node in self._fleet.nodes()}
        return live | {(held.model_key, held.revision) for held in self.reservations.live(self._now())}

    async def _learn_from(self, node: Node) -> None:
        try:
            async with asyncio.timeout(LEARN_S):
                offer = await self._ask(node)
            model_cost(offer.manifest, offer.config, node.dtype)
        except (*UNUSABLE, TimeoutError) as error:
            log.warning("manifest not learned node=%s reason=%s", node.node_id, _reason(error))
            self._not_before[node.node_id] = self._now() + FORGIVE_S
        else:
            self._learned[offer.key] = offer

    async def _ask(self, node: Node) -> Offer:
        source = self._dial(node.url)
        data = await source.small(node.model_key, MANIFEST_NAME)
        _check_size(data, MAX_MANIFEST_BYTES, f"the manifest of {node.url}")
        manifest = decode_manifest(data, f"the manifest of {node.url}")
        if (manifest.model_key, manifest.revision) != (node.model_key, node.revision):
            raise WeightsError(f"{node.url} gives the manifest of {manifest.model_key} {manifest.revision}.")
        data = await source.small(node.model_key, layout.CONFIG)
        _check_size(data, MAX_CONFIG_BYTES, f"the config of {node.url}")
        config = json.loads(data)
        return Offer(manifest, config if isinstance(config, dict) else {}, here=False)

    def _needs(self, offers: Sequence[Offer], dtype: str) -> list[ModelNeed]:
        stats = self._demand.get_combined_stats(self._now_wall())
        reserved = tuple(self.reservations.live(self._now()))
        needs = []
        for offer in offers:
            try:
                cost = model_cost(offer.manifest, offer.config, dtype)
            except UNUSABLE as error:
                log.warning("model has no cost model=%s reason=%s", offer.manifest.model_key, _reason(error))
                continue
            demand_rpm = stats.get(cost.model_key, {}).get("rpm_last_hour", 0.0)
            needs.append(ModelNeed(cost, demand_rpm, tuple(self._fleet.nodes(cost.model_key)), reserved))
        return needs

    def _response(self, chosen: Assignment, offer: Offer, reserved_for_s: float) -> AssignmentResponse:
        return AssignmentResponse(
            model_key=chosen.model_key,
            revision=chosen.revision,
            n_layers=offer.manifest.n_layers,
            shard_start=chosen.shard.start,
            shard_end=chosen.shard.end,
            price_per_token=chosen.price_per_token,
            why=chosen.why,
            reserved_for_s=reserved_for_s,
            weights_bytes=chosen.need.weights_bytes,
            kv_bytes=chosen.need.kv_bytes,
            score=chosen.score,
            demand_rpm=chosen.demand_rpm,
            coverage_deficit=chosen.coverage_deficit,
            sources=self._sources(offer),
        )

    def _sources(self, offer: Offer) -> tuple[str, ...]:
        own = [self._own_url()] if offer.here and _can_be_asked(self._own_url()) else []
        nodes = sorted(
            (node for node in self._fleet.nodes(offer.manifest.model_key) if node.revision == offer.manifest.revision),
            key=lambda node: (node.state != "ready", node.load, node.node_id),
        )
        return (*own, *(node.url for node in nodes))[:MAX_SOURCES]

    def _on_change(self, change: Change) -> None:
        if change.kind == "joined":
            self.reservations.release(change.node.wallet)


def _check_size(data: bytes, most: int, where: str) -> None:
    if len(data) > most:
        raise WeightsError(f"{where} has {len(data)} bytes; {most} are the most.")


def _reason(error: BaseException) -> str:
    return error.message if isinstance(error, MeshnetError) else f"{type(error).__name__} {error}"[:200]


def _named_shard(request: AssignmentRequest) -> Shard | None:
    start, end = request.shard_start, request.shard_end
    if start is None and end is None:
        return None
    if start is None or end is None or not request.model_key or start > end:
        raise InvalidRequest("Layers are named by model_key, shard_start and shard_end.", param="shard_start")
    return Shard(start, end)


def _can_be_asked(url: str) -> bool:
    """An address that stands for all of this machine's is no address to others; joiners know ours anyway."""
    return bool(url) and urlsplit(url).hostname not in ("0.0.0.0", "::")
