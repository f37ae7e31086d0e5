"""Advice to a node that is up to hold other layers (ADR-0031): rarely, one at a time, and never opening a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meshnet.domain.assignment import decode_tps, layer_capacity
from meshnet.domain.ids import NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.reservations import Reservation
from meshnet.domain.shards import Shard

HYSTERESIS = 0.75
"""A move must lift the weakest layer from less than this share of what it would be. A move drains sessions and loads
weights: nearer to 1, nodes wander for a little; lower, an uneven mesh stays as it is."""


@dataclass(frozen=True, slots=True)
class MoveAdvice:
    """``weakest_*`` in tokens/s of the weakest layer, ``open_*`` in layers that nobody holds."""

    node_id: NodeId
    from_shard: Shard
    to_shard: Shard
    weakest_before: float
    weakest_after: float
    open_before: int
    open_after: int

    @property
    def why(self) -> str:
        if self.open_before:
            gain = f"closes {self.open_before - self.open_after} of {self.open_before} open layers"
        else:
            gain = f"lifts the weakest layer from {self.weakest_before:.1f} to {self.weakest_after:.1f} tokens/s"
        return f"Layers {self.from_shard} are held by others too; {self.to_shard} {gain}."


def advise_move(
    nodes: Sequence[Node],
    reservations: Sequence[Reservation] = (),
    may_move: Callable[[Node], bool] = lambda node: True,
    fits: Callable[[Node, Shard], bool] = lambda node, shard: True,
) -> MoveAdvice | None:
    """The one move that helps the mesh most, if any is worth it. ``nodes`` are one routable group with its loading and
    draining ones; ``fits`` says whether a node has the memory for a shard (as long as its own).

    None while anything is on its way: what it brings may be enough, and two moves at once may open a gap together.
    """
    if reservations or any(node.state != "ready" for node in nodes):
        return None
    moves = [move for node in nodes if may_move(node) for move in _moves(node, nodes, fits)]
    return min(moves, key=_preference, default=None)


def _moves(node: Node, nodes: Sequence[Node], fits: Callable[[Node, Shard], bool]) -> Iterator[MoveAdvice]:
    others = [(other.shard, decode_tps(other)) for other in nodes if other.node_id != node.node_id]
    without = layer_capacity(others, node.n_layers)
    if min(without[node.shard.start : node.shard.end + 1]) == 0:
        return  # while it drains and loads, its layers must be held by somebody else
    before = layer_capacity([*others, (node.shard, decode_tps(node))], node.n_layers)
    for start in range(node.n_layers - len(node.shard) + 1):
        shard = Shard(start, start + len(node.shard) - 1)
        if shard == node.shard or not fits(node, shard):
            continue
        after = layer_capacity([*others, (shard, decode_tps(node))], node.n_layers)
        if _is_worth_it(before, after):
            yield MoveAdvice(
                node.node_id, node.shard, shard, min(before), min(after), before.count(0.0), after.count(0.0)
            )


def _is_worth_it(before: Sequence[float], after: Sequence[float]) -> bool:
    if min(before) == 0:
        return after.count(0.0) < before.count(0.0)
    return min(before) < HYSTERESIS * min(after)


def _preference(move: MoveAdvice) -> tuple[int, float, NodeId, Shard]:
    return move.open_after, -move.weakest_after, move.node_id, move.to_shard
