"""Advice to nodes that are up: rarely, one at a time, and only to those that said they follow it.

What is worth a move is ``domain.rebalance``'s; here lies which advice stands, since when, and for whom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemons.tracker.assignments import Assignments
from daemons.tracker.fleet import Fleet
from meshnet.domain.budget import Promise, memory_need
from meshnet.domain.ids import NodeId, Wallet
from meshnet.domain.nodes import Node
from meshnet.domain.rebalance import MoveAdvice, advise_move
from meshnet.domain.reservations import Reservation
from meshnet.domain.shards import Shard
from meshnet.wire import messages

log = logging.getLogger(__name__)

BALANCE_S = 30.0
"""Between two looks. A mesh changes by people's hands, in minutes; sooner only makes nodes move for what passes."""
ADVICE_S = 300.0
"""Advice stands this long: draining takes up to two minutes, loading more. Then another node may be asked."""


@dataclass(frozen=True, slots=True)
class _Standing:
    advice: MoveAdvice
    wallet: Wallet
    until: float


class Rebalancing:
    """``tick`` on a timer; ``advice_for`` at each heartbeat."""

    def __init__(
        self, fleet: Fleet, assignments: Assignments, now: Callable[[], float], tell: Callable[..., Any]
    ) -> None:
        self._fleet = fleet
        self._assignments = assignments
        self._now = now
        self._tell = tell
        self._standing: _Standing | None = None

    def tick(self) -> None:
        """Keep, drop or find the one advice."""
        if self._standing is not None and self._is_open(self._standing):
            return
        self._drop()
        for group in self._groups():
            if (advice := self._find(group)) is not None:
                self._stand(advice, group)
                return

    def advice_for(self, node_id: str) -> messages.MoveAdvice | None:
        """What to tell this node in the answer to its heartbeat."""
        standing = self._standing
        if standing is None or standing.advice.node_id != node_id or not self._is_open(standing):
            return None
        to = standing.advice.to_shard
        return messages.MoveAdvice(to.start, to.end, standing.advice.why)

    def _is_open(self, standing: _Standing) -> bool:
        """Until the wallet is there, its time is over, or it is gone for longer than a restart."""
        there = any(
            node.wallet == standing.wallet and node.shard == standing.advice.to_shard for node in self._fleet.nodes()
        )
        return not there and self._now() < standing.until

    def _drop(self) -> None:
        if self._standing is not None:
            self._assignments.reservations.release(self._standing.wallet)
            self._standing = None

    def _find(self, group: list[Node]) -> MoveAdvice | None:
        wallets = {node.wallet for node in group}
        like = (group[0].model_key, group[0].revision, group[0].dtype)
        reserved = [
            held
            for held in self._assignments.reservations.live(self._now())
            if (held.model_key, held.revision, held.dtype) == like and held.holder not in wallets
        ]
        return advise_move(group, reserved, self._may_move, self._fits)

    def _stand(self, advice: MoveAdvice, group: list[Node]) -> None:
        node = next(node for node in group if node.node_id == advice.node_id)
        # Its new layers count as covered until it is back, else the next joiner takes them as well.
        self._assignments.reservations.reserve(
            Reservation(
                node.wallet,
                node.model_key,
                node.revision,
                node.dtype,
                advice.to_shard,
                node.benchmark_tokens_per_sec,
            ),
            self._now(),
        )
        self._standing = _Standing(advice, node.wallet, self._now() + ADVICE_S)
        log.info("move advised node=%s to=%s why=%s", advice.node_id, advice.to_shard, advice.why)
        self._tell("node.advised", node_id=advice.node_id, model_key=node.model_key, text=advice.why)

    def _groups(self) -> list[list[Node]]:
        """Nodes that can share routes, those loading or draining among them."""
        groups: dict[tuple[str, str, str, int], list[Node]] = {}
        for node in self._fleet.nodes():
            groups.setdefault((node.model_key, node.revision, node.dtype, node.n_layers), []).append(node)
        return [sorted(groups[key], key=lambda node: node.node_id) for key in sorted(groups)]

    def _may_move(self, node: Node) -> bool:
        lease = self._fleet.get(node.node_id)
        return lease is not None and lease.claim.rebalance

    def _fits(self, node: Node, shard: Shard) -> bool:
        """Whether the node's budget holds the weights of ``shard`` beside its KV. Unknown costs: it does not."""
        lease, cost = self._fleet.get(NodeId(node.node_id)), self._assignments.cost(node)
        if lease is None or cost is None or not lease.claim.memory_budget_bytes:
            return False
        need = memory_need(cost, shard, Promise(1, 1))
        total = need.weights_bytes + need.workspace_bytes + lease.claim.kv_budget_bytes
        return total <= lease.claim.memory_budget_bytes
