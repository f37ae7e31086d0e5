"""Thompson sampling in closed form, so that every decision knows its own probability.

Thompson chooses a route as often as it may be the best. For two routes that is ``w = P(it beats the better one)``
exactly. For more, a route's odds against the best predicted one are ``w / (1 - w)``, and probabilities go as odds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_SQRT2 = math.sqrt(2.0)


def beat_probabilities(
    behind: Sequence[float], variances: Sequence[float], best: int, margin: float = 0.0
) -> list[float]:
    """Probabilities that sum to 1. ``behind``: how far each route's mean lies behind that of ``best``, >= 0;
    ``variances``: of that difference (0 where nothing is uncertain: then only a tie shares). ``margin``: by how much
    a route must beat the best to be worth a try."""
    weights = [_odds(gap + margin, variance) for gap, variance in zip(behind, variances, strict=True)]
    weights[best] = 1.0
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _odds(gap: float, variance: float) -> float:
    if gap <= 0:
        return 1.0
    if variance <= 0:
        return 0.0
    # P(N(gap, variance) < 0), at most one half.
    wins = 0.5 * math.erfc(gap / (math.sqrt(variance) * _SQRT2))
    return wins / (1.0 - wins)
