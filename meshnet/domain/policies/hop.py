"""``hop``: routes are predicted from what was learned of their nodes, so one answer teaches about every route that
shares a hop, and a route never tried is predicted too. Exploration follows Thompson on the nodes' variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from operator import mul

from meshnet.domain.candidates import Candidate
from meshnet.domain.hop_stats import HopStatsStore, Predictions
from meshnet.domain.policies.drawn import Odds
from meshnet.domain.policies.memory import RoutingMemory
from meshnet.domain.policies.odds import beat_probabilities
from meshnet.domain.route_search import MIN_REPUTATION

WORTH_A_TRY = 0.05
"""Of ln(seconds): a route is tried as often as it may be 5 % faster than the best predicted. Lower keeps splitting
requests between routes that are as good as equal; higher overlooks small gains."""


def hop_rule(candidates: Sequence[Candidate], memory: RoutingMemory, now: float) -> Odds:
    """Time per token = ``sum(layers x layer_s x (1 + c x load)) + links``, over the route's reputation."""
    predicted = memory.hops.predict([candidate.work for candidate in candidates], now)
    seconds = [
        time_s / max(candidate.reputation, MIN_REPUTATION)
        for time_s, candidate in zip(predicted.seconds, candidates, strict=True)
    ]
    signatures = [candidate.signature for candidate in candidates]
    least_s, _, best = min(zip(seconds, signatures, range(len(seconds)), strict=True))
    variances = _difference_variances(candidates, predicted, best, memory.hops, now)
    behind = [math.log(time_s / least_s) for time_s in seconds]
    probabilities = beat_probabilities(behind, variances, best, WORTH_A_TRY)
    scores = [1.0 / time_s for time_s in seconds]
    return Odds(dict(zip(signatures, scores, strict=True)), dict(zip(signatures, probabilities, strict=True)))


def _difference_variances(
    candidates: Sequence[Candidate], predicted: Predictions, best: int, hops: HopStatsStore, now: float
) -> list[float]:
    """Variance of ln(time of i / time of best), ``sum over nodes of (share_i - share_best)^2 x variance``: what two
    routes have in common does not make them uncertain against each other. Multiplied out: each one's own variance less
    ``2 x share_i x share_best x variance`` of the nodes on both."""
    seconds, parts, variances = predicted
    twice = {
        node_id: 2.0 * part / seconds[best] * hops.variance(node_id, now)
        for node_id, part in zip(candidates[best].node_ids, parts[best], strict=True)
    }
    found: list[float] = []
    for candidate, time_s, own, variance in zip(candidates, seconds, parts, variances, strict=True):
        common = sum(map(mul, own, map(twice.get, candidate.node_ids, repeat(0.0)))) / time_s
        found.append(max(variances[best] + variance - common, 0.0))
    return found
