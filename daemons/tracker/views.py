"""What the tracker shows: nodes, models, coverage, learned routes. Pure reads of the fleet and the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from daemons.tracker.fleet import Fleet, Lease
from daemons.tracker.planner import Planner
from meshnet.domain.coverage import CoverageMap, coverage_deficit, coverage_map, layer_depths
from meshnet.domain.errors import NoRoute, NotFound
from meshnet.domain.ids import ModelKey
from meshnet.domain.nodes import Node
from meshnet.domain.reservations import Reservation
from meshnet.domain.routes import routable_groups, select_route
from meshnet.domain.shards import Shard
from meshnet.wire.messages import (
    CoverageLayer,
    CoverageModel,
    CoverageResponse,
    HardwareMessage,
    HeartbeatRequest,
    ModelMessage,
    ModelsResponse,
    NodeMessage,
    NodesResponse,
    RegisterRequest,
)

Ratio = Callable[[str], float | None]
"""wallet -> observed / claimed speed."""


def nodes(fleet: Fleet, planner: Planner, ratio: Ratio, now: float) -> NodesResponse:
    known = {node.node_id: node for node in planner.nodes()}
    return NodesResponse(
        tuple(_node(lease, known[lease.node.node_id], fleet, planner, ratio, now) for lease in fleet.leases())
    )


def _node(lease: Lease, node: Node, fleet: Fleet, planner: Planner, ratio: Ratio, now: float) -> NodeMessage:
    claim, beat = (
        lease.claim,
        lease.beat or HeartbeatRequest(epoch=node.epoch, kv_free_bytes=lease.claim.kv_budget_bytes),
    )
    batch8, prefill = beat.benchmark_batch8_tokens_per_sec, beat.prefill_tokens_per_sec
    return NodeMessage(
        node_id=node.node_id,
        wallet=node.wallet,
        name=node.name,
        url=node.url,
        model_key=node.model_key,
        revision=node.revision,
        n_layers=node.n_layers,
        shard_start=node.shard.start,
        shard_end=node.shard.end,
        dtype=node.dtype,
        context_length=node.context_length,
        epoch=node.epoch,
        state=node.state,
        relayed=node.is_relayed,
        unreachable=planner.why_blocked(node),
        live=True,
        suspect=planner.is_suspect(node),
        heartbeat_age_s=round(now - node.heard_at, 3),
        joined_age_s=round(now - node.joined_at, 3),
        benchmark_tokens_per_sec=node.benchmark_tokens_per_sec,
        benchmark_batch8_tokens_per_sec=claim.benchmark_batch8_tokens_per_sec if batch8 is None else batch8,
        prefill_tokens_per_sec=claim.prefill_tokens_per_sec if prefill is None else prefill,
        benchmark_spread=claim.benchmark_spread if beat.benchmark_spread is None else beat.benchmark_spread,
        tail_layers=node.tail_layers,
        matrix_gflops=beat.matrix_gflops or 0.0,
        memory_gb_s=beat.memory_gb_s or 0.0,
        observed_tokens_per_sec=beat.observed_tokens_per_sec,
        observed_ratio=ratio(node.wallet),
        reputation=round(node.reputation, 4),
        queue_depth=node.queue_depth,
        in_flight=beat.in_flight,
        tracker_in_flight=node.in_flight,
        kv_budget_bytes=claim.kv_budget_bytes,
        kv_free_bytes=beat.kv_free_bytes,
        memory_budget_bytes=claim.memory_budget_bytes,
        weights_bytes=claim.weights_bytes,
        rss_bytes=beat.rss_bytes,
        loading_done_bytes=beat.loading_done_bytes,
        loading_total_bytes=beat.loading_total_bytes,
        health="quarantined" if fleet.is_quarantined(node.wallet) else planner.health.state(node.wallet),
        ejected_for_s=round(planner.health.ejected_for_s(node.wallet), 3),
        failures=planner.health.failures(node.wallet),
        hardware=_hardware(claim, beat),
    )


def _hardware(claim: RegisterRequest, beat: HeartbeatRequest) -> HardwareMessage:
    """As registered, with what changes or was found out since."""
    known = claim.hardware
    return structs.replace(
        known,
        ram_available_bytes=beat.ram_available_bytes or known.ram_available_bytes,
        accelerators=known.accelerators if beat.accelerators is None else beat.accelerators,
    )


def models(fleet: Fleet, created: int) -> ModelsResponse:
    return ModelsResponse(tuple(_model(fleet, key, created) for key in fleet.model_keys()))


def model(fleet: Fleet, model_key: str, created: int) -> ModelMessage:
    """Raises NotFound(code="model_not_found"); the name must match exactly."""
    if model_key not in fleet.model_keys():
        raise NotFound(f"The model {model_key!r} does not exist here.", code="model_not_found", param="model")
    return _model(fleet, ModelKey(model_key), created)


def _model(fleet: Fleet, model_key: ModelKey, created: int) -> ModelMessage:
    here = fleet.nodes(model_key)
    shown = here or [node for node in (fleet.last_seen(model_key),) if node is not None]
    ready = [node for node in here if node.state == "ready"]
    n_layers = _n_layers(shown)
    context = min((node.context_length for node in shown), default=0)
    return ModelMessage(
        id=model_key,
        created=created,
        n_layers=n_layers,
        context_length=context,
        max_model_len=context,
        revisions=tuple(sorted({node.revision for node in shown})),
        nodes=len(here),
        coverage_deficit=coverage_deficit(layer_depths([n for n in ready if n.n_layers == n_layers], n_layers)),
        ready=is_routable(ready, model_key),
    )


def is_routable(here: Sequence[Node], model_key: ModelKey) -> bool:
    try:
        select_route(here, model_key)
    except NoRoute:
        return False
    return True


def ready_models(fleet: Fleet) -> list[ModelKey]:
    return [key for key in fleet.model_keys() if is_routable(fleet.nodes(key), key)]


def coverage(fleet: Fleet, model_key: str | None, reserved: Sequence[Reservation] = ()) -> CoverageResponse:
    """Raises NotFound for a model that is not known."""
    return CoverageResponse(tuple(_coverage(fleet, key, reserved) for key in known_keys(fleet, model_key)))


def _coverage(fleet: Fleet, model_key: ModelKey, reserved: Sequence[Reservation]) -> CoverageModel:
    here = fleet.nodes(model_key)
    # What can answer: like nodes only. Others of the model cannot share a route with them.
    groups = routable_groups(here, model_key)
    seen = here or [node for node in (fleet.last_seen(model_key),) if node is not None]
    n_layers = groups[0][0].n_layers if groups else _n_layers(seen)
    ready = groups[0] if groups else []
    loading = [node for node in here if node.state == "loading" and node.n_layers == n_layers]
    promised = [held.shard for held in reserved if held.model_key == model_key and held.shard.end < n_layers]
    return _coverage_model(
        coverage_map({n.node_id: n for n in [*loading, *ready]}.values(), model_key, n_layers, promised)
    )


def _coverage_model(found: CoverageMap) -> CoverageModel:
    return CoverageModel(
        model_key=found.model_key,
        n_layers=found.n_layers,
        depths=found.depths,
        gaps=_texts(found.gaps),
        single=_texts(found.single_host),
        coverage_deficit=found.deficit,
        layers=tuple(CoverageLayer(layer.layer, layer.node_ids) for layer in found.layers),
        loss={loss.node_id: ", ".join(_texts(loss.uncovers)) for loss in found.losses},
        on_the_way=_texts(found.on_the_way),
    )


def known_keys(fleet: Fleet, model_key: str | None) -> list[ModelKey]:
    if model_key is None:
        return fleet.model_keys()
    if model_key not in fleet.model_keys():
        raise NotFound(f"The model {model_key!r} does not exist here.", code="model_not_found", param="model")
    return [ModelKey(model_key)]


def _n_layers(here: Sequence[Node]) -> int:
    return max((node.n_layers for node in here), default=0)


def _texts(ranges: Sequence[Shard]) -> tuple[str, ...]:
    return tuple(str(shard) if len(shard) > 1 else str(shard.start) for shard in ranges)
