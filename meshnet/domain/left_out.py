"""Which nodes of a model stand on no candidate, and why: the other half of an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshnet.domain.candidates import Candidate, candidate_groups, hop_prior_tps
from meshnet.domain.coverage import uncovered_layers
from meshnet.domain.ids import ModelKey, NodeId
from meshnet.domain.nodes import Node
from meshnet.domain.shards import format_layers


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One node that cannot be chosen now, in a sentence that an operator can act on."""

    node_id: NodeId
    why: str


def left_out(nodes: Sequence[Node], model_key: ModelKey, candidates: Sequence[Candidate]) -> list[LeftOut]:
    """Every live node of the model that no candidate uses, in the order given."""
    used = {node_id for candidate in candidates for node_id in candidate.route.node_ids}
    groups = candidate_groups(nodes, model_key)
    grouped = {node.node_id for group in groups for node in group}
    served = groups[0][0].revision if groups else "none"
    return [
        LeftOut(node.node_id, _why(node, nodes, node.node_id in grouped, served, candidates))
        for node in nodes
        if node.model_key == model_key and node.node_id not in used
    ]


def _why(node: Node, nodes: Sequence[Node], is_grouped: bool, served: str, candidates: Sequence[Candidate]) -> str:
    if node.state != "ready":
        return f"it is {node.state}"
    if node.shard.end >= node.n_layers:
        return f"it claims layers {node.shard} of a model that has {node.n_layers}"
    if not is_grouped:
        return _why_no_group(node, nodes, served)
    if node.is_head:
        at_most = hop_prior_tps(node)
        return f"its best route has a lower prior ({at_most:.3g} tokens/s at most) than the {len(candidates)} kept"
    better = next(_better_hops(node, candidates), None)
    if better is None:
        return "the kept routes need none of its layers"
    return f"{better} reaches further or is faster from where a hop would enter it"


def _why_no_group(node: Node, nodes: Sequence[Node], served: str) -> str:
    alike = [
        n
        for n in nodes
        if (n.model_key, n.state, n.revision, n.dtype) == (node.model_key, "ready", node.revision, node.dtype)
    ]
    if missing := uncovered_layers(alike):
        return f"no node with its weights and dtype holds layers {format_layers(missing)}"
    return f"it holds revision {node.revision}, but revision {served} is served"


def _better_hops(node: Node, candidates: Sequence[Candidate]) -> Iterator[NodeId]:
    for candidate in candidates:
        for hop in candidate.route.hops:
            if hop.start_layer in node.shard:
                yield hop.node_id
