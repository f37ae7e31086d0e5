"""Layers that are held, but only by nodes that do not answer now: coverage counts leases, and a lease outlives its
node by some heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshnet.domain.shards import format_layers
from meshnet.wire.messages import NodeMessage


def answers(node: NodeMessage) -> bool:
    """Whether requests go to it: it is heard, and was not ejected for its failures."""
    return node.live and not node.suspect and node.health != "ejected"


def depths_heard(depths: Sequence[int], nodes: Iterable[NodeMessage]) -> tuple[int, ...]:
    """Of the tracker's count of holders by layer, those that answer. ``nodes`` are the model's."""
    left = list(depths)
    for node in nodes:
        if node.live and node.state == "ready" and not answers(node):
            for layer in range(node.shard_start, min(node.shard_end + 1, len(left))):
                left[layer] = max(0, left[layer] - 1)
    return tuple(left)


def held_in_silence(nodes: Iterable[NodeMessage]) -> str:
    """``15-29``: layers of one model that only nodes hold which do not answer; "" when there are none."""
    held: set[int] = set()
    heard: set[int] = set()
    for node in nodes:
        layers = range(node.shard_start, node.shard_end + 1)
        if node.live:
            held.update(layers)
        if answers(node):
            heard.update(layers)
    return format_layers(held - heard)
