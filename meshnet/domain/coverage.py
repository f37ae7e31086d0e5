"""Which layers are held, by how many, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.domain.nodes import Node


def layer_depths(nodes: Sequence[Node], n_layers: int) -> list[int]:
    """How many of the nodes hold each layer, 0..n_layers - 1."""
    depths = [0] * n_layers
    for node in nodes:
        for layer in range(node.shard.start, min(node.shard.end, n_layers - 1) + 1):
            depths[layer] += 1
    return depths


def uncovered_layers(nodes: Sequence[Node]) -> list[int]:
    """Layers that none of these nodes (all of one model) holds."""
    if not nodes:
        return []
    return [layer for layer, depth in enumerate(layer_depths(nodes, nodes[0].n_layers)) if depth == 0]


def coverage_deficit(depths: Sequence[int]) -> float:
    """Share of layers held by no node, in [0, 1] (ADR-0013)."""
    return sum(depth == 0 for depth in depths) / len(depths) if depths else 1.0
