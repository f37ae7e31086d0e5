"""What must hold of the code and of what it runs on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from meshnet.domain.errors import InvalidRequest
from meshnet.wire.decode import decode_json
from meshnet.wire.messages import HeartbeatRequest, ModelKeyText, Name, NodeIdText, Url, WalletText

ROOT = Path(__file__).resolve().parents[2]


def test_aiohttp_is_no_version_with_known_holes() -> None:
    assert tuple(map(int, version("aiohttp").split(".")[:3])) >= (3, 14, 3)
    from aiohttp import http_parser

    assert http_parser.HttpRequestParser.__module__ == "aiohttp._http_parser", "the C parser, not the pure one"


def test_no_assert_decides_what_input_is_let_in() -> None:
    """``python -O`` drops asserts: here they may only narrow an optional of our own for the type checker."""
    narrowing = re.compile(r"\(?[\w.]+ is not None\)?(?: and \(?[\w.]+ is not None\)?)*")
    wrong = []
    for top in ("meshnet", "daemons", "tui"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Assert) and not narrowing.fullmatch(ast.unparse(node.test)):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.test)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_validation_holds_without_asserts() -> None:
    """The tests that expect refusals, by an interpreter that drops every assert."""
    words = ["-O", "-m", "pytest", "-q", "-p", "no:warnings"]
    files = ("wire/test_frames.py", "wire/test_openai.py", "wire/test_problem.py")
    files = (*files, "security/test_tickets.py", "security/test_signatures.py", "security/test_addresses.py")
    done = subprocess.run(
        [sys.executable, *words, *(f"tests/{name}" for name in files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode != 0 or passed is None or int(passed[1]) < 50:
        pytest.fail(done.stdout[-3000:])


@pytest.mark.parametrize("name", ["\x1b]0;x\x07", "a\nb", "a\x9bb", "\u202eevil", "", "x" * 129])
def test_names_with_control_characters_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


@pytest.mark.parametrize("kind", [Name, NodeIdText, WalletText, ModelKeyText, Url])
def test_a_line_break_at_the_end_is_no_part_of_a_name(kind: object) -> None:
    good = {NodeIdText: "w.0-14", WalletText: "wallet12", Url: "http://n1:1"}.get(kind, "n1")
    assert msgspec.convert(good, kind) == good
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(f"{good}\n", kind)


def test_every_pattern_of_the_wire_ends_where_the_text_ends() -> None:
    """``$`` also matches before a last line break."""
    for path in (ROOT / "meshnet" / "wire").glob("*.py"):
        assert not re.search(r'pattern=r"[^"]*\$"', path.read_text("utf-8")), path


@pytest.mark.parametrize("lie", ["NaN", "1e308", "-1", "true", '"0"', "null", "1.5", "Infinity", "[]"])
def test_lies_in_a_heartbeat_are_refused_naming_the_field(lie: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(b'{"epoch": 1, "queue_depth": ' + lie.encode() + b"}", HeartbeatRequest)


def test_a_body_nested_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_json(b"[" * 200_000, HeartbeatRequest)


THREATS = ROOT / "docs" / "threat-model.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_the_threat_model_names_tests_that_exist() -> None:
    wrong = []
    for path, name in _TEST.findall(THREATS.read_text("utf-8")):
        file = ROOT / path
        if not file.exists() or not re.search(rf"def {name}\b", file.read_text("utf-8")):
            wrong.append(f"{path}::{name}")
    assert not wrong, "\n".join(wrong)


def test_every_threat_has_a_row_and_a_test() -> None:
    rows = {
        row[0]: line for line in THREATS.read_text("utf-8").splitlines() if (row := re.findall(r"^\| (T\d+) \|", line))
    }
    assert set(rows) == {f"T{i}" for i in range(1, 29)}
    for threat, line in rows.items():
        assert _TEST.search(line), threat
