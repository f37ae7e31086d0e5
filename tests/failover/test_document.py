"""docs/robustness.md names a test for every fault, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from daemons.tracker.__main__ import read_settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/robustness.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", TEXT)))


def functions(path: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, kinds)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists(file: str, name: str) -> None:
    assert name in functions(ROOT / file)


def test_every_fault_has_its_row_and_test() -> None:
    rows = dict(re.findall(r"^\| (F\d+) \|(.*)$", TEXT, re.MULTILINE))
    assert list(rows) == [f"F{number}" for number in range(1, 21)]
    assert all("::test_" in row for row in rows.values())


def test_every_deadline_of_the_table_is_a_flag_with_that_default() -> None:
    rows = re.findall(r"\| (\d+) s \| `--([\w-]+)` \|", TEXT)
    assert len(rows) == 7
    settings = read_settings([])
    for seconds, flag in rows:
        assert getattr(settings, flag.replace("-", "_")) == float(seconds)
        assert getattr(read_settings([f"--{flag}", "7.5"]), flag.replace("-", "_")) == 7.5
