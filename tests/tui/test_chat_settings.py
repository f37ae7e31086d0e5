"""What is typed with a colon, read or refused; a line of the settings reads back as itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidRequest
from tui.chat_settings import MAX_SEED, ChatSettings, Where, is_command, read_command

START = ChatSettings()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (":temperature 0.7", ChatSettings(temperature=0.7)),
        (":temp 0", ChatSettings(temperature=0.0)),
        (":seed 7", ChatSettings(seed=7)),
        (":max 64", ChatSettings(max_tokens=64)),
        (":max_tokens auto", START),
        (": set  temperature=1 seed=9 max_tokens=5", ChatSettings(1.0, 9, 5)),
        (":route a100-1>3090-1", Where("route", "a100-1>3090-1")),
        (":policy greedy", Where("policy", "greedy")),
        (":model m-13b", Where("model", "m-13b")),
    ],
)
def test_a_command_is_read(text: str, wanted: object) -> None:
    assert is_command(text)
    assert read_command(text, START) == wanted


def test_a_seed_becomes_random_again() -> None:
    assert read_command(":seed random", ChatSettings(seed=7)) == START


@pytest.mark.parametrize(
    "text",
    [":", ":hello", ":temperature", ":temperature nan", ":temperature 3", ":temperature -1", ":seed -1", ":seed 1.5",
     ":seed ²", f":seed {MAX_SEED + 1}", ":max_tokens 0", ":max_tokens " + "9" * 5000, ":policy best", ":set seed",
     ":m 3"],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_the_words_there_are(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_command(text, START)


def test_a_blank_before_the_colon_makes_it_a_question() -> None:
    assert not is_command(" :wq is what in vi?")


@given(
    st.floats(0, 2).map(lambda x: round(x, 2)),
    st.none() | st.integers(0, MAX_SEED),
    st.none() | st.integers(1, MAX_SEED),
)
def test_the_line_to_edit_reads_back(temperature: float, seed: int | None, max_tokens: int | None) -> None:
    settings = ChatSettings(temperature, seed, max_tokens)
    assert read_command(settings.as_command(), ChatSettings(1.5, 3, 4)) == settings


@given(st.text())
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        read_command(":" + text, START)
    except InvalidRequest as error:
        assert error.message
