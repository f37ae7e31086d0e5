"""The tracker's benchmark, small: the whole of it is ``meshnet bench tracker``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshnet.bench import learning, tracker


def test_quantiles_are_in_milliseconds_and_of_the_sorted() -> None:
    found = tracker.quantiles_ms([0.003, 0.001, 0.002])
    assert found == {"p50": 2.0, "p95": 3.0, "p99": 3.0}


@pytest.mark.slow
def test_every_figure_is_measured_on_a_live_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHNET_HOME", str(tmp_path))
    assert tracker.main(["--json", "--nodes", "40", "--rate", "10", "--seconds", "1", "--repeats", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    found = figures["live"]
    assert (figures["nodes"], found["requests"], found["arms"]) == (40, 10, 200)
    assert found["through_ms"]["p50"] > 0 and found["table_ms"]["p50"] > 0 and found["decision_ms_mean"] > 0
    assert "added_ms" in tracker.table(figures) and "enumerate hop, 1000 nodes" in tracker.table(figures)


def test_best_routes_are_those_nobody_can_tell_from_the_fastest() -> None:
    phase = learning.Phase(taken=["a", "b", "c", "b"], timed={"a": [10.0, 10.0], "b": [9.8], "c": [5.0]})
    assert phase.best() == {"a", "b"}
    assert phase.best_share(4) == 0.75 and phase.best_share(2) == 0.5
