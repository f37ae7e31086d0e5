"""What goes into a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemons.node.packing import PREFILL_ROWS, PREFILL_ROWS_BESIDE_DECODE, Packer
from meshnet.domain.engine import Rows, StepItem

NOW = 1000.0


def ids(key: int, position: int, count: int, sample: bool = False) -> StepItem:
    return StepItem((key, 0), position, token_ids=tuple(range(position, position + count)), sample=sample)


def test_all_decode_rows_travel_together() -> None:
    packer = Packer()
    for key in range(8):
        packer.open((key, 0), 0, 9, known_tokens=4)
        packer.add(ids(key, 4, 1, True), key)
    step = packer.next_step(NOW)
    assert step is not None
    assert [item.key[0] for item in step.items] == list(range(8))
    assert step.since_ns == tuple(range(8))
    assert packer.next_step(NOW) is None


def test_prefill_alone_takes_full_chunks_and_keeps_sample_for_the_last() -> None:
    packer = Packer()
    packer.open((1, 0), 0, 9, known_tokens=600)
    packer.add(ids(1, 0, 300), 0)
    packer.add(ids(1, 300, 300, True), 0)
    taken = [step.items[0] for _ in range(3) if (step := packer.next_step(NOW)) is not None]
    assert [(item.position, item.n_rows, item.sample) for item in taken] == [
        (0, PREFILL_ROWS, False),
        (PREFILL_ROWS, 44, False),
        (300, PREFILL_ROWS, False),
    ]


def test_prefill_beside_a_stream_is_small_even_while_its_row_is_elsewhere() -> None:
    packer = Packer()
    packer.open((1, 0), 0, 9, known_tokens=4)
    packer.open((2, 0), 0, 9, known_tokens=600)
    packer.add(ids(1, 4, 1, True), 0)
    packer.add(ids(2, 0, 300), 0)
    first = packer.next_step(NOW)
    second = packer.next_step(NOW + 0.1)
    later = packer.next_step(NOW + 10)
    assert first is not None and second is not None and later is not None
    assert [item.n_rows for item in first.items] == [1, PREFILL_ROWS_BESIDE_DECODE]
    assert [item.n_rows for item in second.items] == [PREFILL_ROWS_BESIDE_DECODE]
    assert [item.n_rows for item in later.items] == [300 - 2 * PREFILL_ROWS_BESIDE_DECODE]


def test_a_step_runs_one_range_and_the_other_range_has_its_turn() -> None:
    packer = Packer()
    packer.open((1, 0), 0, 9, 1)
    packer.open((2, 0), 5, 9, 1)
    packer.add(ids(1, 1, 1), 0)
    packer.add(StepItem((2, 0), 1, rows=Rows("float32", (1, 2), bytes(8))), 0)
    ranges = [(s.start_layer, s.end_layer) for _ in range(2) if (s := packer.next_step(NOW)) is not None]
    assert ranges == [(0, 9), (5, 9)]


def test_rows_of_a_closed_session_are_dropped() -> None:
    packer = Packer()
    packer.open((1, 0), 0, 9, 1)
    packer.add(ids(1, 1, 1), 0)
    packer.close((1, 0))
    packer.add(ids(1, 2, 1), 0)
    assert not packer and packer.next_step(NOW) is None


@given(st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=5), min_size=1, max_size=5))
def test_every_row_is_computed_once_and_in_order(chunks: list[list[int]]) -> None:
    packer = Packer()
    for key, sizes in enumerate(chunks):
        packer.open((key, 0), 0, 9, known_tokens=sum(sizes))
        position = 0
        for size in sizes:
            data = b"".join((position + n).to_bytes(4, "little") for n in range(size))
            packer.add(StepItem((key, 0), position, rows=Rows("float32", (size, 1), data)), 0)
            position += size
    seen: dict[int, list[int]] = {key: [] for key in range(len(chunks))}
    while (step := packer.next_step(NOW)) is not None:
        assert sum(item.n_rows for item in step.items) <= PREFILL_ROWS
        for item in step.items:
            assert item.rows is not None
            data = bytes(item.rows.data)
            got = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
            assert item.position == len(seen[item.key[0]])
            assert len(got) == item.n_rows
            seen[item.key[0]] += got
    assert seen == {key: list(range(sum(sizes))) for key, sizes in enumerate(chunks)}
