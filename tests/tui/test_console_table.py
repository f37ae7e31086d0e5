from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.draw.spans import line
from tui.draw.table import Column, Row, Sort, arrange, matches, order_rows, pick_columns


def row(key: str, value: float | str | None = None, text: str = "") -> Row:
    return Row(key, {"text": line(text or key)}, {"v": value})


def keys(rows: object) -> list[str]:
    return [row.key for row in rows]  # type: ignore[attr-defined]


def test_pick_columns_drops_the_highest_first_and_grows_one() -> None:
    columns = (Column("a", "A", 10, grow=True), Column("b", "B", 5, drop=1), Column("c", "C", 5, drop=2))
    picked, dropped = pick_columns(columns, 30)
    assert ([c.width for c in picked], dropped) == ([18, 5, 5], 0)
    picked, dropped = pick_columns(columns, 20)
    assert ([(c.key, c.width) for c in picked], dropped) == ([("a", 14), ("b", 5)], 1)
    picked, dropped = pick_columns(columns, 3)
    assert ([(c.key, c.width) for c in picked], dropped) == ([("a", 3)], 2)


@given(st.integers(1, 300))
def test_pick_columns_never_overflows(width: int) -> None:
    columns = (Column("a", "A", 20, grow=True), *(Column(f"c{i}", "C", 6, drop=i) for i in range(1, 9)))
    picked, _ = pick_columns(columns, width)
    assert sum(c.width for c in picked) + len(picked) - 1 <= max(width, 1)


def test_order_rows_puts_the_unknown_last_either_way() -> None:
    rows = [row("a", 1.0), row("b"), row("c", 3.0)]
    assert keys(order_rows(rows, Sort("v"))) == ["a", "c", "b"]
    assert keys(order_rows(rows, Sort("v", True))) == ["c", "a", "b"]


def test_order_rows_takes_words_and_numbers_together() -> None:
    assert keys(order_rows([row("a", "word"), row("b", 2.0)], Sort("v"))) == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "found"),
    [("a100", True), ("A100 3090", True), ("a100 !3090", False), ("!m2", True), ("", True), ("!", True), ("zz", False)],
)
def test_matches_every_word_and_no_excluded_one(query: str, found: bool) -> None:
    assert matches(row("x", text="a100-1>3090-1"), query) is found


def test_arrange_holds_places_counts_new_rows_and_keeps_the_gone() -> None:
    before = arrange([row("a", 1.0), row("b", 2.0), row("c", 3.0)], Sort("v"), "", (), hold=False).rows
    now = [row("c", 0.0), row("a", 9.0), row("d", 5.0)]
    held = arrange(now, Sort("v"), "", before, hold=True)
    assert keys(held.rows) == ["a", "b", "c"]
    assert [r.gone for r in held.rows] == [False, True, False]
    assert held.rows[0].sort["v"] == 9.0
    assert held.waiting == 1
    assert keys(arrange(now, Sort("v"), "", before, hold=False).rows) == ["c", "d", "a"]


def test_arrange_hides_a_filtered_row_even_while_held() -> None:
    before = (row("a"), row("b"))
    held = arrange([row("a"), row("b")], Sort("v"), "a", before, hold=True)
    assert keys(held.rows) == ["a"]
