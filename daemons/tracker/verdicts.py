"""What the end of an attempt means: to routing, to the next plan, to the client. Pure."""

from __future__ import annotations

from daemons.tracker.attempts import Ended
from daemons.tracker.avoided import is_said_gone
from daemons.tracker.calls import Call, Try
from daemons.tracker.fleet import LeaseId
from daemons.tracker.planner import Plan
from meshnet.domain.errors import NO_OTHER_ROUTE, MeshnetError, NodeFailed, NoRoute, Overloaded
from meshnet.domain.ids import NodeId
from meshnet.domain.routing import Outcome, OutcomeStatus


def lease_of(plan: Plan, culprit: NodeId | None) -> LeaseId:
    hops = plan.decision.route.hops
    hop = next((hop for hop in hops if hop.node_id == culprit), hops[0])
    return hop.node_id, hop.epoch


def outcome_of(call: Call, attempt: Try) -> Outcome:
    """What routing learns of it. A client's cancel and a refusal are no sample; the rest of a broken answer neither."""
    plan, ended, route = attempt.plan, attempt.ended, attempt.plan.decision.route
    status: OutcomeStatus = "cancelled"
    culprit = None
    if ended is not None and ended.kind == "finished":
        status = "ok" if attempt.number == 1 else "rerouted"
    elif ended is not None and ended.kind == "failed":
        status = "failed"
        culprit = ended.culprit if ended.culprit in route.node_ids else None
        if is_said_gone(ended) and culprit != route.head.node_id:
            culprit = None  # A head says so of another: whoever looks for that one will know.
    return Outcome(
        model_key=route.model_key,
        route=route,
        signature=plan.decision.signature,
        epoch=plan.epoch,
        status=status,
        started_at=attempt.started_at,
        first_token_at=attempt.first_at,
        finished_at=attempt.last_at if status == "ok" and attempt.last_at else attempt.ended_at or attempt.started_at,
        completion_tokens=attempt.tokens,
        prompt_tokens=len(call.prompt_ids or ()),
        hop_timings=attempt.hop_timings,
        loads=plan.loads,
        claimed_layer_s=plan.chosen.layer_s,
        failed_node=culprit,
    )


def failure(ended: Ended, because: str) -> MeshnetError:
    text = ended.message.rstrip(".")
    if ended.kind == "refused" and ended.code != "epoch_changed":
        return Overloaded(f"{text} ({ended.culprit}); {because}.", code=ended.code)
    return NodeFailed(
        f"{text} (node {ended.culprit}, {ended.code}); {because}.", node_id=ended.culprit, code=ended.code
    )


def without_route(error: NoRoute, broken: Ended | None) -> MeshnetError:
    """What the client hears when no route is left: at first the gap, later what broke as well."""
    return error if broken is None else failure(broken, f"{NO_OTHER_ROUTE}: {error.message.rstrip('.')}")


def param_of(code: str) -> str | None:
    return "messages" if code in ("context_length_exceeded", "chat_template") else None
