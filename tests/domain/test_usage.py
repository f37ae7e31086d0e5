from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import Conflict, InvalidRequest
from meshnet.domain.ids import CallId, ModelKey, NodeId, Revision
from meshnet.domain.routes import Hop, Route
from meshnet.domain.usage import TokenShare, check_call, token_shares, usage_rows, usage_totals

CALL = CallId("call-1")


def route(*ends: int) -> Route:
    starts = [0, *(end + 1 for end in ends[:-1])]
    hops = tuple(
        # Each node holds more than it runs: the ledger has what was executed.
        Hop(NodeId(f"w{i}.{start}-{ends[-1]}"), f"http://w{i}", start, end)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    return Route(ModelKey("m"), Revision("r"), "float32", ends[-1] + 1, hops)


@pytest.mark.parametrize(
    ("prompt", "produced", "shares"),
    [
        (10, [32], [(42, 0)]),
        (10, [20, 12], [(30, 0), (12, 30)]),
        (10, [0, 5], [(0, 0), (15, 0)]),
        (10, [5, 0, 4, 1], [(15, 0), (0, 0), (4, 15), (1, 19)]),
        (10, [0], [(0, 0)]),
        (10, [], []),
        (0, [3], [(3, 0)]),
    ],
)
def test_a_token_is_shared_out_once(prompt, produced, shares):
    assert token_shares(prompt, produced) == tuple(TokenShare(*share) for share in shares)


@pytest.mark.parametrize("bad", [(-1, [1]), (1, [1, -1])])
def test_negative_counts_are_refused(bad):
    with pytest.raises(InvalidRequest, match="negative"):
        token_shares(*bad)


def test_rows_have_every_hop_with_the_head_and_abut():
    rows = usage_rows(CALL, 0, route(4, 6, 9), TokenShare(42), "complete")
    assert [(r.hop, r.wallet, r.start_layer, r.end_layer, r.layers, r.work_units) for r in rows] == [
        (0, "w0", 0, 4, 5, 210),
        (1, "w1", 5, 6, 2, 84),
        (2, "w2", 7, 9, 3, 126),
    ]
    assert check_call(rows, 10) == 10 * 42
    assert {row.price_micro_units for row in rows} == {0}


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 50), st.sets(st.integers(0, 28), max_size=5)), min_size=1, max_size=5),
)
def test_a_call_sums_to_layers_times_tokens_whatever_failed(prompt, attempts):
    shares = token_shares(prompt, [count for count, _ in attempts])
    rows = [
        row
        for i, ((_, cuts), share) in enumerate(zip(attempts, shares, strict=True))
        for row in usage_rows(CALL, i, route(*sorted(cuts), 29), share, "failed")
    ]
    produced = sum(count for count, _ in attempts)
    assert check_call(rows, 30) == 30 * (prompt + produced if produced else 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[1:], "hop 0 is missing"),
        (lambda rows: [rows[0], rows[2]], "hop 1 is missing"),
        (lambda rows: rows[:2], "ends at layer 6 of 10"),
        (lambda rows: [*rows, rows[1]], "stands twice"),
        (lambda rows: [rows[0], replace(rows[1], start_layer=4), rows[2]], "layer 5 comes next"),
        (lambda rows: [rows[0], replace(rows[1], end_layer=7), rows[2]], "layer 8 comes next"),
        (lambda rows: [rows[0], replace(rows[1], tokens=41), rows[2]], "41 tokens"),
        (lambda rows: [rows[0], replace(rows[1], call_id=CallId("call-2")), rows[2]], "2 calls"),
    ],
)
def test_a_ledger_that_does_not_fit_is_named(change, words):
    rows = list(usage_rows(CALL, 0, route(4, 6, 9), TokenShare(42), "complete"))
    with pytest.raises(Conflict, match=words):
        check_call(change(rows), 10)


def test_totals_by_wallet_count_a_row_once():
    first = usage_rows(CALL, 0, route(4, 9), TokenShare(10), "failed")
    second = usage_rows(CALL, 1, route(9), TokenShare(5, 10), "complete")
    totals = usage_totals([*first, *second, *first])
    assert [(t.wallet, t.calls, t.tokens, t.replayed_tokens, t.work_units) for t in totals] == [
        ("w0", 1, 15, 10, 100),
        ("w1", 1, 10, 0, 50),
    ]


def test_prices_are_whole_numbers():
    rows = [replace(r, price_micro_units=3) for r in usage_rows(CALL, 0, route(9), TokenShare(10), "complete")]
    assert usage_totals(rows)[0].price_micro_units == 300
