"""What the tracker shows of learned routes: the candidate table, a decision explained. Pure reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import structs

from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Plan, Planner
from daemons.tracker.views import known_keys
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.routes import Hop, parse_signature
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

NameOf = Callable[[NodeId], str]
"""What a node's owner calls it, for display; "" where nobody knows."""

Shares = Mapping[str, float]
"""signature -> its part of a model's calls of late; empty where there were none."""

MAX_REMEMBERED = 200
"""Arms shown beside the candidates; a table beyond it is read by nobody."""


def routing(
    fleet: Fleet, planner: Planner, model_key: str | None, shares_of: Callable[[ModelKey], Shares]
) -> RoutingResponse:
    """The candidate table of each model. Raises NotFound for one that is not known."""
    config = planner.config
    return RoutingResponse(
        config=RoutingConfigMessage(
            policy=config.policy if planner.learning else "greedy-fallback",
            explore_share=config.explore_share,
            weight_alpha=config.weight_alpha,
            stats_half_life_s=config.stats_half_life_s,
            min_sample_tokens=config.min_sample_tokens,
        ),
        models=tuple(_routing(fleet, planner, key, shares_of(key)) for key in known_keys(fleet, model_key)),
    )


def _routing(fleet: Fleet, planner: Planner, model_key: ModelKey, shares: Shares) -> RoutingModel:
    rows = planner.table(model_key)
    name_of = fleet.name_of
    shown = (*_candidates(rows, name_of, planner), *_remembered(rows, name_of, planner, model_key))
    if shares:
        shown = tuple(structs.replace(row, actual_share=shares.get(row.signature, 0.0)) for row in shown)
    return RoutingModel(
        model_key=model_key,
        topology_epoch=planner.epoch(model_key),
        candidates=shown,
        left_out=_left_out(rows, planner, model_key),
        dropped_samples=planner.memory.arms.dropped,
    )


def _candidates(rows: Sequence[ArmRow], name_of: NameOf, planner: Planner) -> tuple[CandidateMessage, ...]:
    return tuple(_candidate(row, name_of, planner) for row in rows)


def _candidate(row: ArmRow, name_of: NameOf, planner: Planner) -> CandidateMessage:
    candidate = row.candidate
    return CandidateMessage(
        signature=candidate.signature,
        hops=tuple(
            _with_time(shown, hop, planner)
            for shown, hop in zip(
                route_hops(candidate.route.hops, name_of, candidate.loads), candidate.route.hops, strict=True
            )
        ),
        status=row.status,
        prior_tps=candidate.prior_tps,
        learned_tps=row.tps,
        spread_tps=row.spread_tps,
        coefficient=row.coefficient,
        expected_share=row.expected_share,
        samples=row.samples,
        weight=row.mass,
        age_s=row.age_s,
        stale_in_s=planner.memory.arms.fades_in_s(row.mass) if row.status == "proven" else None,
        predicted_tps=row.predicted_tps,
        reputation=candidate.reputation * row.success_share,
        ttft_s_per_prompt_token=row.ttft_s_per_prompt_token,
        decode_s_per_token=row.decode_s_per_token,
        next_scout=planner.learning and row.status != "proven" and row.expected_share > 0,
    )


def _with_time(shown: RouteHop, hop: Hop, planner: Planner) -> RouteHop:
    """What a token should take on it, idle, by all that was measured of the node."""
    learned = planner.memory.hops
    if not learned.samples(hop.node_id):
        return shown
    layer_s = learned.layer_s(hop.node_id, 0.0)
    return structs.replace(shown, computing_us=round(hop.work_layers * layer_s * 1e6, 1))


def _remembered(
    rows: Sequence[ArmRow], name_of: NameOf, planner: Planner, model_key: ModelKey
) -> Iterator[CandidateMessage]:
    """Arms that were measured and are no candidate now (pinned ones, and those of nodes that left), best first."""
    shown = {row.candidate.signature for row in rows}
    arms = planner.memory.arms.known(model_key, planner.now())
    others = [(signature, arm) for signature, arm in arms if signature not in shown and arm.tps is not None]
    others.sort(key=lambda pair: (-(pair[1].tps or 0.0), pair[0]))
    for signature, arm in others[:MAX_REMEMBERED]:
        hops = [Hop(node_id, "", start, end) for node_id, start, end in parse_signature(signature)[1]]
        yield CandidateMessage(
            signature=signature,
            hops=route_hops(hops, name_of),
            status=arm.status,
            prior_tps=0.0,
            learned_tps=arm.tps,
            spread_tps=arm.spread_tps,
            samples=arm.samples,
            weight=arm.mass,
            age_s=arm.age_s,
            reputation=arm.success_share,
            ttft_s_per_prompt_token=arm.ttft_s_per_prompt_token,
            decode_s_per_token=arm.decode_s_per_token,
            current=False,
        )


def route_hops(hops: Sequence[Hop], name_of: NameOf, loads: Sequence[int] = ()) -> tuple[RouteHop, ...]:
    """``loads`` run along the hops; without them they are 0."""
    return tuple(
        RouteHop(
            node_id=hop.node_id,
            name=name_of(hop.node_id),
            start_layer=hop.start_layer,
            end_layer=hop.end_layer,
            load=load,
            relayed=hop.url.startswith("relay://"),
        )
        for hop, load in zip(hops, loads or [0] * len(hops), strict=True)
    )


def explain(fleet: Fleet, planner: Planner, model_key: str, plan: Plan, policy: str | None) -> ExplainResponse:
    rows = planner.table(model_key, policy)
    return ExplainResponse(
        model_key=model_key,
        topology_epoch=plan.epoch,
        decision=decision_message(plan),
        candidates=_candidates(rows, fleet.name_of, planner),
        left_out=_left_out(rows, planner, model_key),
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


def _left_out(rows: Sequence[ArmRow], planner: Planner, model_key: str) -> tuple[tuple[str, str], ...]:
    found = planner.left_out(model_key, [row.candidate for row in rows])
    return tuple((row.node_id, row.why) for row in found)
