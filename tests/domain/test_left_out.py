from __future__ import annotations

from dataclasses import replace

from meshnet.domain.candidates import enumerate_routes
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.left_out import left_out
from meshnet.domain.nodes import Node
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")


def node(wallet: str, start: int, end: int, **changes) -> Node:
    shard = Shard(start, end)
    made = Node(make_node_id(Wallet(wallet), shard), Wallet(wallet), "", MODEL, Revision("r"), 10, shard)
    return replace(made, **changes)


def reasons(nodes: list[Node]) -> dict[str, str]:
    candidates = enumerate_routes(nodes, MODEL)
    return {row.node_id.partition(".")[0]: row.why for row in left_out(nodes, MODEL, candidates)}


def test_nobody_is_left_out_of_a_plain_mesh():
    assert reasons([node("a", 0, 4), node("b", 5, 9)]) == {}


def test_each_reason_is_said():
    nodes = [
        node("a", 0, 4),
        node("b", 5, 9),
        node("loading", 5, 9, state="loading"),
        node("middle", 4, 7),
        node("needless", 1, 3),
        node("newer", 0, 9, revision=Revision("s")),
        node("half", 0, 4, dtype="bfloat16"),
        node("mad", 5, 10),
        node("elsewhere", 0, 9, model_key=ModelKey("other")),
    ]
    assert reasons(nodes) == {
        "loading": "it is loading",
        "middle": "b.5-9 reaches further or is faster from where a hop would enter it",
        "needless": "the kept routes need none of its layers",
        "newer": "it holds revision s, but revision r is served",
        "half": "no node with its weights and dtype holds layers 5-9",
        "mad": "it claims layers 5-10 of a model that has 10",
    }


def test_the_ninth_head_hears_of_its_prior():
    nodes = [node(f"n{i}", 0, 9, benchmark_tokens_per_sec=float(i + 1)) for i in range(9)]
    assert reasons(nodes) == {"n0": "its best route has a lower prior (1 tokens/s at most) than the 8 kept"}


def test_a_gap_is_named():
    assert reasons([node("a", 0, 4), node("b", 7, 9)])["a"] == "no node with its weights and dtype holds layers 5-6"
