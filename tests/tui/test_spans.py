from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.draw.ascii import ascii_text, speaks_utf8
from tui.draw.spans import cut, fit, line, plain, ruler, span, spread, visible, width_of, wrap

HOSTILE = (
    "[/INST]",
    "[true, false]",
    "[b +",
    "\x1b[2J\x1b]0;x\x07",
    "a\r\nb",
    "\u202eabc",
    "❤️🎉",
    "漢字かな",
    "\x9b31m",
    "\ud800",
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2J", "^[[2J"),
        ("a\rb\n", "a^Mb^J"),
        ("\x7f\x9b", "^?<009B>"),
        ("\u202eevil", "<202E>evil"),
        ("z\u200bw", "z<200B>w"),
        ("❤️", "❤"),
        ("[/INST]", "[/INST]"),
    ],
)
def test_visible_shows_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_keeps_the_newlines_of_an_answer() -> None:
    assert visible("a\n\tb\x1b", "\n\t") == "a\n\tb^["


@given(st.text())
def test_visible_never_lets_a_control_through(text: str) -> None:
    shown = visible(text)
    assert all(ord(char) >= 0x20 and not 0x7F <= ord(char) < 0xA0 for char in shown)
    assert "\u202e" not in shown


@given(st.lists(st.text(max_size=12), max_size=5), st.integers(0, 40))
def test_fit_is_exactly_as_wide_as_asked(texts: list[str], width: int) -> None:
    parts = line(*[span(text) for text in texts])
    assert width_of(fit(parts, width)) == width
    assert width_of(cut(parts, width)) <= width


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200), st.integers(12, 60))
def test_wrap_loses_no_word_and_no_line_is_too_wide(text: str, width: int) -> None:
    lines = wrap(line(text), width)
    assert all(width_of(parts) <= width for parts in lines)
    if all(len(word) <= width - 3 for word in text.split()):
        assert " ".join(plain(parts) for parts in lines).split() == text.split()


def test_spread_keeps_the_right_end_whole() -> None:
    assert plain(spread(line("a long left side"), line("RIGHT"), 12)) == "a long…RIGHT"


def test_ruler_fills_its_width() -> None:
    assert width_of(ruler("calls", 30, "tail")) == 30


@pytest.mark.parametrize("text", HOSTILE)
def test_ascii_text_keeps_the_width(text: str) -> None:
    shown = visible(text)
    assert ascii_text(shown).isascii()
    assert cell_len(ascii_text(shown)) == cell_len(shown)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C.utf8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "en_US.ISO-8859-1"}, False),
        ({}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "de_DE.ISO-8859-1", "LC_CTYPE": "de_DE.UTF-8"}, True),
    ],
)
def test_speaks_utf8_reads_the_first_locale_that_is_set(environ: dict[str, str], expected: bool) -> None:
    assert speaks_utf8(environ) is expected
