from __future__ import annotations

import itertools
from random import Random

import pytest

from meshnet.domain.candidates import HOP_LINK_S, claimed_layer_s
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.route_search import EXTRA_NODES, MAX_SEARCHED, k_best_routes
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")


def node(wallet: str, start: int, end: int, tps: float = 1.0, n_layers: int = 12) -> Node:
    shard = Shard(start, end)
    node_id = make_node_id(Wallet(wallet), shard)
    return Node(node_id, Wallet(wallet), "", MODEL, Revision("r"), n_layers, shard, benchmark_tokens_per_sec=tps)


def all_routes(nodes: list[Node], layer: int = 0, used: tuple[str, ...] = ()) -> list[float]:
    """Seconds per token of every route with every cut, by brute force."""
    if layer == nodes[0].n_layers:
        return [0.0]
    found = []
    for one in nodes:
        if one.node_id in used or layer not in one.shard:
            continue
        for end in range(layer, one.shard.end + 1):
            seconds = (end - layer + 1) * claimed_layer_s(one) + HOP_LINK_S
            found += [seconds + rest for rest in all_routes(nodes, end + 1, (*used, one.node_id))]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_first_is_the_fastest_of_all_routes_with_all_cuts(seed):
    rng = Random(seed)
    nodes = [node("whole", 0, 5, 1.0, n_layers=6)]
    for i in range(4):
        start = rng.randrange(6)
        nodes.append(node(f"n{i}", start, rng.randrange(start, 6), rng.uniform(1, 20), n_layers=6))
    best = k_best_routes(nodes, MODEL)[0]
    assert 1 / best.prior_tps == pytest.approx(min(all_routes(nodes)))


def test_a_hop_ends_inside_its_shard_where_a_faster_node_begins():
    nodes = [node("slow", 0, 11, tps=1.0), node("fast", 4, 11, tps=100.0)]
    best = k_best_routes(nodes, MODEL)[0]
    assert [(h.node_id, h.start_layer, h.end_layer) for h in best.route.hops] == [
        ("slow.0-11", 0, 3),
        ("fast.4-11", 4, 11),
    ]


def test_candidates_are_sorted_and_bounded():
    nodes = [node(f"n{i}", s, e, tps=i + 1.0) for i, (s, e) in enumerate(itertools.product((0, 2, 4), (7, 9, 11)))]
    candidates = k_best_routes(nodes, MODEL)
    assert MAX_SEARCHED <= len(candidates) <= MAX_SEARCHED + EXTRA_NODES
    assert len({c.signature for c in candidates}) == len(candidates)


def test_every_node_that_can_serve_is_on_a_candidate_over_time():
    nodes = [node(f"n{i}", s, e, tps=0.5 + i) for i, (s, e) in enumerate([(0, 5), (3, 8), (6, 11)] * 8)]
    seen = set()
    for turn in range(len(nodes)):
        seen |= {node_id for c in k_best_routes(nodes, MODEL, turn) for node_id in c.route.node_ids}
    assert seen == {n.node_id for n in nodes}


def test_learned_speeds_and_links_rank_instead_of_claims():
    nodes = [node("claims", 0, 11, tps=100.0), node("does", 0, 11, tps=10.0)]
    learned = {"claims.0-11": (0.1, 0.0), "does.0-11": (0.001, 0.0)}
    best = k_best_routes(nodes, MODEL, speed=lambda n: learned[n.node_id])[0]
    assert best.route.head.node_id == "does.0-11"
    far = {"claims.0-11": (0.001, 9.0), "does.0-11": (0.001, 0.0)}
    assert k_best_routes(nodes, MODEL, speed=lambda n: far[n.node_id])[0].route.head.node_id == "does.0-11"
