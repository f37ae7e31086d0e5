"""What all policies of a tracker learn into: one memory, so that another policy may be asked for at any request."""

from __future__ import annotations

from meshnet.domain.routing import Outcome, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import RouteStatsStore


class RoutingMemory:
    """Arms (end to end) and nodes (per hop), fed by the same outcomes."""

    def __init__(self, config: RoutingConfig) -> None:
        self.arms = RouteStatsStore(config.stats_half_life_s, config.min_sample_tokens)

    def observe(self, outcome: Outcome) -> bool:
        """True if the outcome became a speed sample."""
        return self.arms.observe(outcome)

    def on_topology(self, change: TopologyChange) -> None:
        self.arms.on_topology(change)

    def prune(self, now: float) -> None:
        self.arms.prune(now)
