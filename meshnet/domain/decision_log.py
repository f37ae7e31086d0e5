"""Decisions as rows of a log, and what another policy would have earned on them.

A row holds everything a policy saw and what came of it. ``replay`` weighs each outcome by how much likelier the other
policy takes the logged route than the logging one did (self-normalized inverse propensity scoring,
``sum(w r) / sum(w)`` with ``w = p_other / p_logged``; Swaminathan and Joachims 2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshnet.domain.candidates import Candidate
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.policies import Router
from meshnet.domain.routes import Hop, Route, parse_signature
from meshnet.domain.routing import Decision, HopTiming, Outcome, RoutingConfig, is_positive_number

MAX_WEIGHT = 20.0
"""Of one row: a rare logged choice must not decide the estimate alone. Lower is steadier and leans to the logger."""
FILE_ENDING = ".decisions.jsonl"
"""Of a tracker's log, ``<state>/trackers/<name>.decisions.jsonl``; its older half has OLDER_ENDING after that."""
OLDER_ENDING = ".1"
CONFIDENCE_Z = 1.96
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A candidate as it was. The tuples run along the signature's hops."""

    signature: str
    prior_tps: float
    loads: tuple[int, ...]
    reputations: tuple[float, ...]
    layer_s: tuple[float, ...]
    relayed: tuple[int, ...] = ()
    """Which hops, from 0, were behind a relay."""
    tail_layers: float = 0.0
    """``Hop.tail_layers`` of the last one."""


@dataclass(frozen=True, slots=True)
class TimingRow:
    node_id: str
    steps: int
    compute_s: float
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision and what came of it; plain values, so that it can be one line of JSON. Times are seconds of the
    logging tracker's monotonic clock."""

    now: float
    model_key: str
    revision: str
    dtype: str
    n_layers: int
    epoch: int
    policy: str
    mode: str
    signature: str
    propensity: float
    candidates: tuple[CandidateRow, ...]
    scores: Mapping[str, float]
    status: str
    finished_at: float
    first_token_at: float | None = None
    completion_tokens: int = 0
    prompt_tokens: int = 0
    hop_timings: tuple[TimingRow, ...] = ()
    boot: str = ""
    """Of the tracker's process: stamps and epochs of two processes have nothing to do with each other."""

    @property
    def reward_tps(self) -> float:
        """Tokens/s that the choice earned; a failure earned none."""
        seconds = self.finished_at - self.now
        if self.status != "ok" or not (is_positive_number(self.completion_tokens) and is_positive_number(seconds)):
            return 0.0
        return self.completion_tokens / seconds


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a policy would have earned, in tokens/s per request, with a 95 % interval."""

    policy: str
    tokens_per_s: float
    low: float
    high: float
    rows: int
    effective_rows: float
    """``(sum w)^2 / sum w^2``: how many rows of its own this is worth. Under 30 the interval says little."""
    logged_tokens_per_s: float
    """What the logging policy did earn on the same rows."""


def decision_row(decision: Decision, candidates: Sequence[Candidate], outcome: Outcome, boot: str = "") -> DecisionRow:
    """The log's row of one finished choice."""
    route = decision.route
    return DecisionRow(
        now=outcome.started_at,
        model_key=route.model_key,
        revision=route.revision,
        dtype=route.dtype,
        n_layers=route.n_layers,
        epoch=outcome.epoch,
        policy=decision.policy,
        mode=decision.mode,
        signature=decision.signature,
        propensity=decision.propensity,
        candidates=tuple(map(_candidate_row, candidates)),
        scores=decision.scores,
        status=outcome.status,
        finished_at=outcome.finished_at,
        first_token_at=outcome.first_token_at,
        completion_tokens=outcome.completion_tokens,
        prompt_tokens=outcome.prompt_tokens,
        hop_timings=tuple(TimingRow(t.node_id, t.steps, t.compute_s, t.queue_s) for t in outcome.hop_timings),
        boot=boot,
    )


def replay(rows: Iterable[DecisionRow], policy: str, config: RoutingConfig) -> Estimate:
    """What ``policy`` would have earned on logged decisions; it learns from the log's outcomes as it goes. Cancelled
    and re-routed rows are left out, and so are pinned and greedy-fallback ones, which no dice chose. It can only be
    asked about candidates that were logged. What another process of the tracker logged is learned anew, as the
    tracker had to. Raises InvalidRequest without a usable row."""
    Router(config).policy(policy)  # An unknown name is refused whatever the log holds.
    lives: dict[str, list[DecisionRow]] = {}
    for row in rows:
        if _is_usable(row):
            lives.setdefault(row.boot, []).append(row)
    weights: list[float] = []
    rewards: list[float] = []
    for life in lives.values():
        _replay_life(sorted(life, key=lambda row: row.now), policy, Router(config), weights, rewards)
    return estimate(weights, rewards, policy)


def _replay_life(
    rows: Sequence[DecisionRow], policy: str, router: Router, weights: list[float], rewards: list[float]
) -> None:
    """Appends the weight and the reward of each row."""
    pending: list[Outcome] = []
    for row in rows:
        router.memory.arms.epochs.raise_to(row.model_key, row.epoch)
        pending = _observe_until(router, pending, row.now)
        candidates = [_candidate(row, c) for c in row.candidates]
        odds = {r.candidate.signature: r.expected_share for r in router.table(candidates, row.now, policy)}
        weights.append(min(odds.get(row.signature, 0.0) / row.propensity, MAX_WEIGHT))
        rewards.append(row.reward_tps)
        pending.append(_outcome(row, candidates))


def estimate(weights: Sequence[float], rewards: Sequence[float], policy: str) -> Estimate:
    """Self-normalized estimate with the delta method's interval,
    ``variance = sum(w^2 (r - mean)^2) / (sum w)^2``. Raises InvalidRequest if nothing weighs."""
    total = math.fsum(weights)
    if total <= 0:
        raise InvalidRequest(f"The log has no decision that {policy} could have taken too: nothing to estimate from.")
    mean = math.fsum(w * r for w, r in zip(weights, rewards, strict=True)) / total
    spread = math.sqrt(math.fsum((w * (r - mean)) ** 2 for w, r in zip(weights, rewards, strict=True))) / total
    return Estimate(
        policy=policy,
        tokens_per_s=mean,
        low=mean - CONFIDENCE_Z * spread,
        high=mean + CONFIDENCE_Z * spread,
        rows=len(weights),
        effective_rows=total * total / math.fsum(w * w for w in weights),
        logged_tokens_per_s=math.fsum(rewards) / len(rewards),
    )


def _is_usable(row: DecisionRow) -> bool:
    if row.mode not in ("scout", "exploit") or row.status not in ("ok", "failed"):
        return False
    numbers = (x for c in row.candidates for x in (c.prior_tps, c.tail_layers, *c.loads, *c.reputations, *c.layer_s))
    if not (math.isfinite(row.now) and math.isfinite(row.finished_at) and all(map(math.isfinite, numbers))):
        return False
    return any(c.signature == row.signature for c in row.candidates) and 0 < row.propensity <= 1


def _observe_until(router: Router, pending: list[Outcome], now: float) -> list[Outcome]:
    """Outcomes are learned when they end, not when they are chosen."""
    for outcome in sorted((o for o in pending if o.finished_at <= now), key=lambda o: o.finished_at):
        router.observe(outcome)
    return [o for o in pending if o.finished_at > now]


def _candidate_row(c: Candidate) -> CandidateRow:
    relayed = tuple(index for index, hop in enumerate(c.route.hops) if hop.is_relayed)
    return CandidateRow(
        c.signature, c.prior_tps, c.loads, c.reputations, c.layer_s, relayed, c.route.hops[-1].tail_layers
    )


def _candidate(row: DecisionRow, logged: CandidateRow) -> Candidate:
    model_key, parts = parse_signature(logged.signature)
    hops = tuple(
        Hop(
            node_id,
            "relay://" if index in logged.relayed else "",
            start,
            end,
            tail_layers=logged.tail_layers if end == row.n_layers - 1 else 0.0,
        )
        for index, (node_id, start, end) in enumerate(parts)
    )
    route = Route(ModelKey(model_key), Revision(row.revision), row.dtype, row.n_layers, hops)
    return Candidate(
        route, logged.signature, logged.prior_tps, tuple(logged.loads), tuple(logged.reputations), tuple(logged.layer_s)
    )


def _outcome(row: DecisionRow, candidates: Sequence[Candidate]) -> Outcome:
    chosen = next(c for c in candidates if c.signature == row.signature)
    return Outcome(
        model_key=ModelKey(row.model_key),
        route=chosen.route,
        signature=row.signature,
        epoch=row.epoch,
        status="ok" if row.status == "ok" else "failed",
        started_at=row.now,
        first_token_at=row.first_token_at,
        finished_at=row.finished_at,
        completion_tokens=row.completion_tokens,
        prompt_tokens=row.prompt_tokens,
        hop_timings=tuple(HopTiming(NodeId(t.node_id), t.steps, t.compute_s, t.queue_s) for t in row.hop_timings),
        loads=chosen.loads,
        claimed_layer_s=chosen.layer_s,
    )
