from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import BadPin, InvalidRequest, NoRoute
from meshnet.domain.ids import ModelKey, NodeId, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.routes import Hop, Route, next_hop, parse_signature, pinned_route, select_route, signature
from meshnet.domain.shards import Shard

MODEL = ModelKey("m")


def node(wallet: str, start: int, end: int, n_layers: int = 10, **changes) -> Node:
    shard = Shard(start, end)
    made = Node(make_node_id(Wallet(wallet), shard), Wallet(wallet), "", MODEL, Revision("r"), n_layers, shard)
    return replace(made, **changes)


def ranges(route: Route) -> list[tuple[str, int, int]]:
    return [(hop.node_id.partition(".")[0], hop.start_layer, hop.end_layer) for hop in route.hops]


def route_of(*hops: tuple[str, int, int], n_layers: int = 10) -> Route:
    made = tuple(Hop(NodeId(name), "", start, end) for name, start, end in hops)
    return Route(MODEL, Revision("r"), "float32", n_layers, made)


@pytest.mark.parametrize(
    "hops",
    [
        [("a", 1, 9)],
        [("a", 0, 4), ("b", 6, 9)],
        [("a", 0, 5), ("b", 5, 9)],
        [("a", 0, 8)],
        [("a", 0, 10)],
        [("a", 0, 4), ("a", 5, 9)],
        [],
    ],
)
def test_route_refuses_hops_that_do_not_cover_every_layer_once(hops):
    with pytest.raises(InvalidRequest):
        route_of(*hops)


def test_head_and_tail_are_the_routes_own_hops():
    route = route_of(("a", 0, 4), ("b", 5, 9))
    assert (route.head.node_id, route.tail.node_id) == ("a", "b")


def test_select_route_takes_the_furthest_reaching_then_the_fastest_then_the_smaller_id():
    nodes = [
        node("short", 0, 3),
        node("slow", 0, 5, benchmark_tokens_per_sec=1.0),
        node("fast", 0, 5, benchmark_tokens_per_sec=5.0),
        node("tail2", 4, 9),
        node("tail1", 4, 9),
    ]
    assert ranges(select_route(nodes, MODEL)) == [("fast", 0, 5), ("tail1", 6, 9)]


def test_select_route_counts_the_queue():
    nodes = [
        node("busy", 0, 9, benchmark_tokens_per_sec=5.0, in_flight=9),
        node("idle", 0, 9, benchmark_tokens_per_sec=1.0),
    ]
    assert ranges(select_route(nodes, MODEL)) == [("idle", 0, 9)]


@pytest.mark.parametrize(
    ("shards", "gap"), [([(1, 9)], "0"), ([(0, 3), (6, 9)], "4-5"), ([(0, 7)], "8-9"), ([(0, 3), (5, 8)], "4, 9")]
)
def test_no_route_names_the_uncovered_layers(shards, gap):
    with pytest.raises(NoRoute, match=f"layers {gap} of 10"):
        select_route([node(f"n{i}", *shard) for i, shard in enumerate(shards)], MODEL)


def test_select_route_never_mixes_dtypes_or_revisions():
    nodes = [node("a", 0, 4), node("b", 5, 9, dtype="bfloat16"), node("c", 5, 9, revision=Revision("other"))]
    with pytest.raises(NoRoute):
        select_route(nodes, MODEL)


def test_next_hop_enters_inside_a_shard_and_skips_used_nodes():
    group = [node("a", 0, 7), node("b", 2, 5)]
    hop = next_hop(group, 3)
    assert hop is not None and (hop.node_id, hop.start_layer, hop.end_layer) == ("a.0-7", 3, 7)
    hop = next_hop(group, 3, used=[NodeId("a.0-7")])
    assert hop is not None and hop.node_id == "b.2-5"
    assert next_hop(group, 8) is None


def test_pinned_route_runs_the_named_nodes_in_order():
    nodes = [node("a", 0, 6), node("b", 3, 9)]
    assert ranges(pinned_route(nodes, MODEL, ["a.0-6", "b.3-9"])) == [("a", 0, 6), ("b", 7, 9)]


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        ([], "empty"),
        (["x.0-9"], "not live"),
        (["a.0-6"], "layers 7-9 are missing"),
        (["b.3-9"], "layer 0 comes next"),
        (["a.0-6", "a.0-6"], "twice"),
        (["w.0-9", "b.3-9"], "nothing left"),
        (["d.0-9"], "draining"),
        (["o.0-9"], "serves other"),
        (["a.0-6", "f.3-9"], "different weights or dtypes"),
    ],
)
def test_bad_pin_says_what_is_wrong(pin, says):
    nodes = [
        node("a", 0, 6),
        node("b", 3, 9),
        node("w", 0, 9),
        node("d", 0, 9, state="draining"),
        node("o", 0, 9, model_key=ModelKey("other")),
        node("f", 3, 9, dtype="bfloat16"),
    ]
    with pytest.raises(BadPin, match=says):
        pinned_route(nodes, MODEL, pin)


# Ids are checked where nodes register; the parser copes with worse: only a whole range inside would be ambiguous.
ids = st.text(min_size=1).filter(lambda text: "]" not in text) | st.sampled_from(
    ["a|b", "a -> b", "a | b", "[", "a[0-9"]
)


@given(st.lists(st.tuples(ids, st.integers(0, 4095), st.integers(0, 4095)), min_size=1, max_size=6))
def test_signature_round_trips(parts):
    hops = [Hop(NodeId(name), "", start, end) for name, start, end in parts]
    assert parse_signature(signature("m-1.5", hops)) == ("m-1.5", tuple((NodeId(n), s, e) for n, s, e in parts))


@pytest.mark.parametrize(
    "text", ["", "m", "m | ", "m | a", "m | a[0-9] -> ", "m | a[0-9]b[1-2]", "m | a[0-x]", "a[0-9]"]
)
def test_parse_signature_refuses_other_text(text):
    with pytest.raises(InvalidRequest, match="no route signature"):
        parse_signature(text)
