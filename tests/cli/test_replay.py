"""``meshnet routes replay``: on logs as a tracker writes them, whole, rotated, cut short, or not there."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from meshnet.cli.__main__ import main
from meshnet.domain.candidates import Candidate
from meshnet.domain.decision_log import CandidateRow, DecisionRow
from meshnet.domain.ids import ModelKey, NodeId, Revision
from meshnet.domain.routes import Hop, Route

Capsys = pytest.CaptureFixture[str]
MODEL = ModelKey("m")
TPS = {"fast": 40.0, "slow": 10.0}


def candidate(name: str) -> Candidate:
    route = Route(MODEL, Revision("r"), "float32", 10, (Hop(NodeId(name), "", 0, 9),))
    return Candidate(route, route.signature, 10.0, (0,), (1.0,), (0.01,))


def row(number: int, name: str, boot: str = "first") -> DecisionRow:
    """Both routes were as likely; each earned what it always does."""
    logged = tuple(CandidateRow(candidate(n).signature, 10.0, (0,), (1.0,), (0.01,)) for n in TPS)
    now, seconds = number * 20.0, 100 / TPS[name]
    return DecisionRow(
        now, MODEL, "r", "float32", 10, 0, "random", "scout", candidate(name).signature, 0.5, logged, {}, "ok",
        now + seconds, now + 0.1, 100, 10, boot=boot,
    )  # fmt: skip


def rows(n: int, boot: str = "first") -> list[bytes]:
    return [msgspec.json.encode(row(i, "fast" if i % 2 else "slow", boot)) + b"\n" for i in range(n)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHNET_HOME", str(tmp_path))
    (tmp_path / "trackers").mkdir()
    return tmp_path / "trackers" / "tracker.decisions.jsonl"


def test_replay_says_what_another_policy_would_have_earned(log: Path, capsys: Capsys) -> None:
    log.write_bytes(b"".join(rows(400)))
    assert main(["routes", "replay", "--policy", "greedy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_s"] == pytest.approx(40, abs=1) and found["logged_tokens_per_s"] == pytest.approx(25)
    assert found["low"] <= found["tokens_per_s"] <= found["high"] and found["rows"] == 400
    assert main(["routes", "replay", "--policy", "random"]) == 0
    assert capsys.readouterr().out.startswith("random would have earned 25.0 tokens/s a request")


def test_both_halves_of_the_ring_are_read_and_a_cut_line_is_left_out(log: Path, capsys: Capsys) -> None:
    log.with_name(log.name + ".1").write_bytes(b"".join(rows(100)))
    log.write_bytes(b"".join(rows(50, boot="second")) + rows(1)[0][:40])
    assert main(["routes", "replay", "--policy", "random", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 150


def test_few_effective_decisions_are_said(log: Path, capsys: Capsys) -> None:
    log.write_bytes(b"".join(rows(10)))
    assert main(["routes", "replay", "--policy", "hop"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("note: ") and "too few to lean on" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--policy", "hop"], "No tracker logged decisions"),
        (["--policy", "hop", "--log", "nowhere.jsonl"], "There is no decision log nowhere.jsonl"),
    ],
)
def test_a_missing_log_is_said(log: Path, capsys: Capsys, words: list[str], why: str) -> None:
    assert main(["routes", "replay", *words]) == 1
    assert why in capsys.readouterr().err


def test_an_unknown_policy_and_an_ambiguous_log_are_refused(log: Path, capsys: Capsys) -> None:
    log.write_bytes(b"".join(rows(10)))
    assert main(["routes", "replay", "--policy", "best"]) == 1
    assert "choose one of adr, hop" in capsys.readouterr().err
    log.with_name("other.decisions.jsonl").write_bytes(b"")
    assert main(["routes", "replay", "--policy", "hop"]) == 1
    assert "other.decisions.jsonl, tracker.decisions.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--route-explore-share", "1.5", "from 0 to 1"),
        ("--route-weight-alpha", "nan", "from 0 to 1000"),
        ("--route-stats-half-life", "0", "from 1 to 604800"),
        ("--route-policy", "best", "choose one of adr, hop, greedy"),
    ],
)
def test_up_tracker_refuses_a_knob_out_of_its_range(capsys: Capsys, flag: str, value: str, says: str) -> None:
    assert main(["up", "tracker", flag, value]) == 1
    assert says in capsys.readouterr().err
