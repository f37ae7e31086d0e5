"""What all policies of a tracker learn into: one memory, so that another policy may be asked for at any request."""

from __future__ import annotations

from meshnet.domain.candidates import claimed_layer_s, unmeasured_link_s, usable_load
from meshnet.domain.hop_stats import HopStatsStore
from meshnet.domain.nodes import Node
from meshnet.domain.routing import Outcome, RoutingConfig, TopologyChange
from meshnet.domain.routing_stats import RouteStatsStore


class RoutingMemory:
    """Arms (end to end) and nodes (per hop), fed by the same outcomes."""

    def __init__(self, config: RoutingConfig) -> None:
        self.arms = RouteStatsStore(config.stats_half_life_s, config.min_sample_tokens)
        self.hops = HopStatsStore(config.stats_half_life_s)

    def observe(self, outcome: Outcome) -> bool:
        """True if the outcome became a speed sample; nodes learn from the same outcomes as arms."""
        is_sample = self.arms.observe(outcome)
        if is_sample:
            self.hops.observe(outcome)
        return is_sample

    def speed(self, node: Node) -> tuple[float, float]:
        """Of a node as loaded now, as far as it is learned: seconds per token and layer, and for its link."""
        slowdown = 1.0 + self.hops.load_factor * usable_load(node)
        return self.hops.layer_s(node.node_id, claimed_layer_s(node)) * slowdown, self.hops.link_s(
            node.node_id, unmeasured_link_s(node)
        )

    def on_topology(self, change: TopologyChange) -> None:
        """Arms of the model go stale; what is known of a node stays: its id says which shard it holds."""
        self.arms.on_topology(change)

    def prune(self, now: float) -> None:
        """Forget what was not measured for a day."""
        self.arms.prune(now)
        self.hops.prune(now)
