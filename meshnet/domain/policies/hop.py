"""``hop``: routes are predicted from what was learned of their nodes, so one answer teaches about every route that
shares a hop, and a route never tried is predicted too. Exploration follows Thompson on the nodes' variance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshnet.domain.candidates import Candidate
from meshnet.domain.hop_stats import Prediction
from meshnet.domain.policies.drawn import Odds
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.odds import beat_probabilities
from meshnet.domain.route_search import MIN_REPUTATION

WORTH_A_TRY = 0.05
"""Of ln(seconds): a route is tried as often as it may be 5 % faster than the best predicted. Lower keeps splitting
requests between routes that are as good as equal; higher overlooks small gains."""


def hop_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """Time per token = ``sum(layers x layer_s x (1 + c x load)) + links``, over the route's reputation."""
    predictions = memory.hops.predict(candidates, now)
    logs = [
        prediction.log_seconds - math.log(max(candidate.reputation, MIN_REPUTATION))
        for prediction, candidate in zip(predictions, candidates, strict=True)
    ]
    best = min(range(len(logs)), key=lambda i: (logs[i], candidates[i].signature))
    variances = _difference_variances(candidates, predictions, best)
    probabilities = beat_probabilities([log - logs[best] for log in logs], variances, best, WORTH_A_TRY)
    signatures = [candidate.signature for candidate in candidates]
    return Odds(
        {signature: math.exp(-log) for signature, log in zip(signatures, logs, strict=True)},
        dict(zip(signatures, probabilities, strict=True)),
    )


def _difference_variances(candidates: Sequence[Candidate], predictions: Sequence[Prediction], best: int) -> list[float]:
    """Variance of ln(time of i / time of best), ``sum over nodes of (share_i - share_best)^2 x variance``: what two
    routes have in common does not make them uncertain against each other."""
    ours = predictions[best]
    shares = {node_id: share for (node_id, _), share in zip(candidates[best].work, ours.shares, strict=True)}
    whole = sum(s * s * v for s, v in zip(ours.shares, ours.variances, strict=True))
    found: list[float] = []
    for candidate, (_, parts, variances) in zip(candidates, predictions, strict=True):
        total = whole
        for (node_id, _), share, variance in zip(candidate.work, parts, variances, strict=True):
            total += variance * share * (share - 2.0 * shares.get(node_id, 0.0))
        found.append(max(total, 0.0))
    return found
