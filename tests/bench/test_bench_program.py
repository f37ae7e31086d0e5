"""``python -m meshnet.bench``: what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshnet.bench.__main__ import main, names


@pytest.mark.parametrize("name", ["chat", "failover", "learning"])
def test_model_that_is_not_here_is_one_line_that_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHNET_HOME", str(tmp_path))
    assert main([name, "--json"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"No model 'smollm2-135m' in {tmp_path}/models. Stored: none. Get it with: meshnet models pull"


def test_benchmarks_are_named_where_none_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names()) and "tracker" in names()
