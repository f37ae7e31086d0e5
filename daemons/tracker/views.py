"""What the tracker shows: nodes, models, coverage, learned routes. Pure reads of the fleet and the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemons.tracker.fleet import Fleet, Lease
from daemons.tracker.planner import Plan, Planner
from meshnet.domain.coverage import CoverageMap, coverage_deficit, coverage_map, layer_depths
from meshnet.domain.errors import NoRoute, NotFound
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.routes import Hop, routable_groups, select_route
from meshnet.domain.routing import ArmRow
from meshnet.domain.shards import Shard
from meshnet.wire.messages import (
    CoverageLayer,
    CoverageModel,
    CoverageResponse,
    HeartbeatRequest,
    ModelMessage,
    ModelsResponse,
    NodeMessage,
    NodesResponse,
)
from meshnet.wire.routing import (
    CandidateMessage,
    DecisionMessage,
    ExplainResponse,
    RouteHop,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
)


def nodes(fleet: Fleet, planner: Planner, now: float) -> NodesResponse:
    known = {node.node_id: node for node in planner.nodes()}
    return NodesResponse(
        tuple(_node(lease, known[lease.node.node_id], fleet, planner, now) for lease in fleet.leases())
    )


def _node(lease: Lease, node: Node, fleet: Fleet, planner: Planner, now: float) -> NodeMessage:
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
        live=True,
        suspect=fleet.is_suspect(node),
        heartbeat_age_s=round(now - node.heard_at, 3),
        joined_age_s=round(now - node.joined_at, 3),
        benchmark_tokens_per_sec=node.benchmark_tokens_per_sec,
        benchmark_batch8_tokens_per_sec=claim.benchmark_batch8_tokens_per_sec if batch8 is None else batch8,
        prefill_tokens_per_sec=claim.prefill_tokens_per_sec if prefill is None else prefill,
        benchmark_spread=claim.benchmark_spread,
        observed_tokens_per_sec=beat.observed_tokens_per_sec,
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
        health=planner.health.state(node.wallet),
        ejected_for_s=round(planner.health.ejected_for_s(node.wallet), 3),
        failures=planner.health.failures(node.wallet),
        hardware=claim.hardware,
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


def coverage(fleet: Fleet, model_key: str | None) -> CoverageResponse:
    """Raises NotFound for a model that is not known."""
    return CoverageResponse(tuple(_coverage(fleet, key) for key in _keys(fleet, model_key)))


def _coverage(fleet: Fleet, model_key: ModelKey) -> CoverageModel:
    here = fleet.nodes(model_key)
    # What can answer: like nodes only. Others of the model cannot share a route with them.
    groups = routable_groups(here, model_key)
    seen = here or [node for node in (fleet.last_seen(model_key),) if node is not None]
    n_layers = groups[0][0].n_layers if groups else _n_layers(seen)
    return _coverage_model(coverage_map(groups[0] if groups else [], model_key, n_layers))


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
    )


def routing(fleet: Fleet, planner: Planner, model_key: str | None) -> RoutingResponse:
    """The candidate table of each model. Raises NotFound for one that is not known."""
    config = planner.config
    return RoutingResponse(
        config=RoutingConfigMessage(
            policy=config.policy,
            explore_share=config.explore_share,
            weight_alpha=config.weight_alpha,
            stats_half_life_s=config.stats_half_life_s,
            min_sample_tokens=config.min_sample_tokens,
        ),
        models=tuple(_routing(fleet, planner, key) for key in _keys(fleet, model_key)),
    )


def _routing(fleet: Fleet, planner: Planner, model_key: ModelKey) -> RoutingModel:
    rows = planner.table(model_key)
    return RoutingModel(
        model_key=model_key,
        topology_epoch=planner.epoch(model_key),
        candidates=_candidates(rows, fleet),
        left_out=_left_out(rows, fleet, planner, model_key),
        dropped_samples=planner.memory.arms.dropped,
    )


def _candidates(rows: Sequence[ArmRow], fleet: Fleet) -> tuple[CandidateMessage, ...]:
    names = {node.node_id: node.name for node in fleet.nodes()}
    return tuple(_candidate(row, names) for row in rows)


def _candidate(row: ArmRow, names: Mapping[NodeId, str]) -> CandidateMessage:
    candidate = row.candidate
    return CandidateMessage(
        signature=candidate.signature,
        hops=route_hops(candidate.route.hops, names, candidate.loads),
        status=row.status,
        prior_tps=candidate.prior_tps,
        learned_tps=row.tps,
        coefficient=row.coefficient,
        expected_share=row.expected_share,
        samples=row.samples,
        weight=row.mass,
        age_s=row.age_s,
        predicted_tps=row.predicted_tps,
        reputation=candidate.reputation * row.success_share,
        ttft_s_per_prompt_token=row.ttft_s_per_prompt_token,
        decode_s_per_token=row.decode_s_per_token,
        next_scout=row.status != "proven" and row.expected_share > 0,
    )


def route_hops(hops: Sequence[Hop], names: Mapping[NodeId, str], loads: Sequence[int] = ()) -> tuple[RouteHop, ...]:
    """``loads`` run along the hops; without them they are 0."""
    return tuple(
        RouteHop(
            node_id=hop.node_id,
            name=names.get(hop.node_id, ""),
            start_layer=hop.start_layer,
            end_layer=hop.end_layer,
            load=load,
        )
        for hop, load in zip(hops, loads or [0] * len(hops), strict=True)
    )


def explain(fleet: Fleet, planner: Planner, model_key: str, plan: Plan, policy: str | None) -> ExplainResponse:
    rows = planner.table(model_key, policy)
    return ExplainResponse(
        model_key=model_key,
        topology_epoch=plan.epoch,
        decision=decision_message(plan),
        candidates=_candidates(rows, fleet),
        left_out=_left_out(rows, fleet, planner, model_key),
    )


def decision_message(plan: Plan) -> DecisionMessage:
    decision = plan.decision
    return DecisionMessage(
        mode=decision.mode,
        signature=decision.signature,
        why=decision.why,
        policy=decision.policy,
        probability=decision.propensity,
        scores=dict(decision.scores),
        probabilities=dict(decision.probabilities),
    )


def _left_out(rows: Sequence[ArmRow], fleet: Fleet, planner: Planner, model_key: str) -> tuple[tuple[str, str], ...]:
    used = {node_id for row in rows for node_id in row.candidate.route.node_ids}
    return tuple(
        (node.node_id, _why_left_out(node, fleet, planner))
        for node in sorted(fleet.nodes(model_key), key=lambda node: node.node_id)
        if node.node_id not in used
    )


def _why_left_out(node: Node, fleet: Fleet, planner: Planner) -> str:
    if node.state != "ready":
        return f"it is {node.state}"
    if fleet.is_suspect(node):
        return f"it missed {fleet.missed(node)} heartbeats"
    if planner.health.state(node.wallet) != "ok":
        return f"it failed and is ejected for another {planner.health.ejected_for_s(node.wallet):.0f} s"
    return "no candidate needs it: others reach further from every layer where it could be entered"


def _keys(fleet: Fleet, model_key: str | None) -> list[ModelKey]:
    if model_key is None:
        return fleet.model_keys()
    if model_key not in fleet.model_keys():
        raise NotFound(f"The model {model_key!r} does not exist here.", code="model_not_found", param="model")
    return [ModelKey(model_key)]


def _n_layers(here: Sequence[Node]) -> int:
    return max((node.n_layers for node in here), default=0)


def _texts(ranges: Sequence[Shard]) -> tuple[str, ...]:
    return tuple(str(shard) if len(shard) > 1 else str(shard.start) for shard in ranges)
