"""What the tracker shows of learned routes: the candidate table, a decision explained. Pure reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Plan, Planner
from daemons.tracker.views import known_keys
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.routes import Hop
from meshnet.domain.routing import ArmRow
from meshnet.wire.routing import (
    CandidateMessage,
    DecisionMessage,
    ExplainResponse,
    RouteHop,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
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
        models=tuple(_routing(fleet, planner, key) for key in known_keys(fleet, model_key)),
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
