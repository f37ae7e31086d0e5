"""Which live nodes a plan does without: those that a call avoids, and doubtful ones where others hold their layers.

Suspect nodes missed heartbeats or were found gone by a call, ejected ones failed calls. None is left out where it alone
holds a layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from daemons.tracker.fleet import Fleet, LeaseId
from daemons.tracker.health import Health
from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import Node

Avoid = Collection[LeaseId]
"""(node_id, epoch) of nodes a call does not want again; one that came back under a new epoch is welcome."""


class Doubts:
    """Reads the fleet and what calls taught of health; changes neither."""

    def __init__(self, fleet: Fleet, health: Health) -> None:
        self._fleet = fleet
        self._health = health
        self._gone: dict[NodeId, float] = {}
        """When each node that a call found gone was last heard of."""

    def found_gone(self, node_id: NodeId, epoch: int) -> None:
        """A call found this lease's process not there: nothing listens, or its link closed, or it does not answer."""
        lease = self._fleet.get(node_id)
        if lease is not None and lease.node.epoch == epoch:
            self._gone[node_id] = lease.node.heard_at

    def found_here(self, node_id: NodeId) -> None:
        self._gone.pop(node_id, None)

    def is_gone(self, node: Node) -> bool:
        """Found gone, and not heard of since."""
        return self._gone.get(node.node_id) == node.heard_at

    def forget(self) -> None:
        """Those that have no lease any more, or were heard of."""
        self._gone = {node.node_id: node.heard_at for node in self._fleet.nodes() if self.is_gone(node)}

    def is_suspect(self, node: Node) -> bool:
        return self._fleet.is_suspect(node) or self.is_gone(node)

    def usable(self, nodes: Sequence[Node], avoid: Avoid) -> list[Node]:
        """Without those to avoid; without doubtful ones as well, as far as the rest still covers what all do. A call
        that broke already spends none of its few re-routes on a node found gone: it waits for a sign of it."""
        kept = [
            node for node in nodes if (node.node_id, node.epoch) not in avoid and not (avoid and self.is_gone(node))
        ]
        # Back under another epoch it may serve, but one that comes back again and again is not waited for.
        returned = {node_id for node_id, _ in avoid}
        found = (node for node in kept if node.node_id in returned or self._is_doubtful(node))
        doubtful = sorted(found, key=self._doubt, reverse=True)
        if not doubtful:
            return kept
        holders, left = _holders(kept), set[NodeId]()
        for node in doubtful:
            if node.state == "ready":
                held = holders[_like(node)]
                layers = range(node.shard.start, node.shard.end + 1)
                if any(held[layer] < 2 for layer in layers):
                    continue  # It alone holds one of its layers.
                held.subtract(layers)
            left.add(node.node_id)
        return [node for node in kept if node.node_id not in left]

    def tries_one(self, nodes: Sequence[Node]) -> bool:
        """Whether one of them is on trial, free or not."""
        return any(self._health.state(node.wallet) == "half-open" for node in nodes)

    def _is_doubtful(self, node: Node) -> bool:
        """Suspect, ejected, or on trial with the one request it gets."""
        state = self._health.state(node.wallet)
        on_trial = state == "half-open" and node.in_flight > 0
        return state == "ejected" or on_trial or self.is_suspect(node)

    def _doubt(self, node: Node) -> tuple[bool, int, float, str]:
        """The most doubtful is left out first."""
        return self.is_gone(node), self._fleet.missed(node), self._health.ejected_for_s(node.wallet), node.node_id

    def why(self, node: Node) -> str:
        """In a sentence for operators."""
        if self.is_gone(node):
            return "a call found it gone, and it was not heard of since"
        if self._fleet.is_suspect(node):
            return f"it missed {self._fleet.missed(node)} heartbeats"
        if self._health.state(node.wallet) == "half-open":
            return "it failed and is on trial with one request"
        return f"it failed and is ejected for another {self._health.ejected_for_s(node.wallet):.0f} s"


def _holders(nodes: Sequence[Node]) -> dict[tuple[str, str, int], Counter[int]]:
    """Of each kind of like nodes, how many ready ones hold each layer."""
    holders: dict[tuple[str, str, int], Counter[int]] = {}
    for node in nodes:
        if node.state == "ready":
            holders.setdefault(_like(node), Counter()).update(range(node.shard.start, node.shard.end + 1))
    return holders


def _like(node: Node) -> tuple[str, str, int]:
    """Only like nodes may share a route."""
    return node.revision, node.dtype, node.n_layers
