"""docs/api.md says what is true: every path and header stands there, every named example is that struct."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from meshnet.wire import api, demand, messages, routing

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```json ?(\w*)\n(.*?)^```", DOCUMENT, re.M | re.S)


def constants(prefix: str) -> list[str]:
    return [value for name, value in vars(api).items() if name.isupper() and str(value).startswith(prefix)]


@pytest.mark.parametrize("path", constants("/"))
def test_every_path_is_documented(path: str) -> None:
    assert re.search(rf"`(GET|POST|DELETE) {re.escape(path)}`", DOCUMENT)


@pytest.mark.parametrize("header", constants("X-"))
def test_every_header_is_documented(header: str) -> None:
    assert f"`{header}`" in DOCUMENT


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=lambda value: value if len(value) < 30 else "")
def test_every_example_is_what_it_says(name: str, text: str) -> None:
    value = json.loads(text)
    if name:
        kind = next(vars(module)[name] for module in (messages, routing, demand) if name in vars(module))
        struct = msgspec.convert(value, kind)
        known = msgspec.to_builtins(struct)
        assert _unknown(value, known) == []


def _unknown(value: object, known: object, at: str = "") -> list[str]:
    """Keys of the example that the struct does not have: lenient structs drop them silently."""
    if isinstance(value, dict) and isinstance(known, dict):
        missing = [f"{at}.{key}" for key in value if key not in known]
        return missing + [
            bad for key in value if key in known for bad in _unknown(value[key], known[key], f"{at}.{key}")
        ]
    if isinstance(value, list) and isinstance(known, list | tuple):
        return [bad for one, other in zip(value, known, strict=True) for bad in _unknown(one, other, at)]
    return []


def test_examples_are_found() -> None:
    assert len([name for name, _ in EXAMPLES if name]) >= 12
