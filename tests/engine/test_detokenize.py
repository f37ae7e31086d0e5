from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_testing import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from meshnet.engine.detokenize import AnswerStream

TOKENIZER = byte_tokenizer(["<|im_end|>"])
END = 256
NOBODY = frozenset({END})


def _decode(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=True)


def _ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def _stream(stop: Sequence[str] = (), produced: Sequence[int] = (), sent: int = 0) -> AnswerStream:
    return AnswerStream(_decode, NOBODY, stop, produced, sent)


@given(st.text(alphabet=st.characters(exclude_characters="\ufffd", exclude_categories=("Cs",)), max_size=30))
def test_pieces_joined_are_the_text_and_no_piece_breaks_a_character(text: str) -> None:
    stream = _stream()
    pieces = [stream.push(token_id) for token_id in _ids(text)]
    assert "".join(pieces) + stream.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_an_unfinished_character_is_dropped_when_the_answer_ends() -> None:
    stream = _stream()
    assert "".join(stream.push(token_id) for token_id in _ids("a😀")[:-1]) == "a"
    assert stream.flush() == ""
    assert stream.finish_reason is None


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back_for_ever() -> None:
    lone = _ids("é")[1:]
    stream = _stream()
    text = "".join(stream.push(token_id) for token_id in lone * 20 + _ids("end"))
    assert text.endswith("end")


def test_the_end_token_ends_the_answer_and_shows_nothing() -> None:
    stream = _stream()
    assert [stream.push(token_id) for token_id in (*_ids("hi"), END, *_ids("more"))] == ["h", "i", "", "", "", "", ""]
    assert stream.finish_reason == "stop"


@pytest.mark.parametrize(
    ("stop", "text", "shown", "finish"),
    [
        (["STOP"], "one STOP two", "one ", "stop"),
        (["STOP"], "one STO", "one STO", None),
        (["aab"], "aaab", "a", "stop"),
        (["zzz", "b", "ab"], "xxab", "xx", "stop"),
        ([""], "text", "text", None),
        (["😀"], "so 😀!", "so ", "stop"),
    ],
)
def test_a_stop_string_cuts_the_text_before_it(stop: list[str], text: str, shown: str, finish: str | None) -> None:
    stream = _stream(stop)
    pieces = [stream.push(token_id) for token_id in _ids(text)]
    assert "".join(pieces) + stream.flush() == shown
    assert stream.finish_reason == finish


def test_text_that_may_become_a_stop_string_waits() -> None:
    stream = _stream(["STOP"])
    assert [stream.push(token_id) for token_id in _ids("xSTxST")] == ["x", "", "", "STx", "", ""]
    assert stream.flush() == "ST"


@given(st.integers(0, 60), st.data())
def test_a_stream_taken_over_anywhere_goes_on_exactly(cut: int, data: st.DataObject) -> None:
    ids = _ids("naïve 日本語 😀👩‍🚀 STO STOP tail")
    cut = min(cut, len(ids))
    unbroken = _stream(["STOP"])
    pieces = [unbroken.push(token_id) for token_id in ids]
    whole = "".join(pieces) + unbroken.flush()
    before = "".join(pieces[:cut])
    sent = data.draw(st.integers(0, len(before)))
    resumed = _stream(["STOP"], ids[:cut], sent)
    rest = "".join(resumed.push(token_id) for token_id in ids[cut:]) + resumed.flush()
    assert before[:sent] + rest == whole
    assert resumed.finish_reason == unbroken.finish_reason == "stop"


def test_the_cost_of_a_token_does_not_grow_with_the_answer() -> None:
    sizes: list[int] = []

    def counted(ids: Sequence[int]) -> str:
        sizes.append(len(ids))
        return _decode(ids)

    stream = AnswerStream(counted, NOBODY)
    for token_id in _ids("日本語 text " * 50):
        stream.push(token_id)
    assert max(sizes) <= 16
