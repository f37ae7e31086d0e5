"""What ``meshnet usage`` and ``meshnet doctor --repair-db`` print and do."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from daemons.tracker.store import open_database
from meshnet.cli.__main__ import main
from meshnet.cli.tables import hardware_table, nodes_table
from meshnet.cli.usage import rows_table, totals_table
from meshnet.wire.demand import UsageRow, UsageTotal
from meshnet.wire.messages import AcceleratorMessage, HardwareMessage, NodeMessage


def printed(what: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80, markup=False, highlight=False).print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def total(wallet: str, work_units: int) -> UsageTotal:
    return UsageTotal(
        wallet=wallet,
        model_key="smollm2-135m",
        calls=1234,
        tokens=1_234_567,
        replayed_tokens=12_345,
        work_units=work_units,
    )


def test_totals_fit_eighty_columns_most_work_first() -> None:
    wallets = ("gjx6qwsibb6fhruqido6", "bokbap5qi6b634t4t5nl")
    lines = printed(totals_table([total(wallets[0], 30_000_000), total(wallets[1], 10_000_000)], {wallets[0]: "n1"}))
    assert max(map(len, lines)) <= 80 and len(lines) == 3
    assert lines[1].split()[:2] == ["n1", "gjx6qwsi"] and lines[1].endswith("75%")
    assert "(gone)" in lines[2] and lines[2].endswith("25%")


def test_rows_fit_eighty_columns_and_hostile_names_are_spelled_out() -> None:
    row = UsageRow(
        call_id="call-0741789116a09a0e102b0317",
        attempt=1,
        hop=0,
        model_key="m",
        node_id="gjx6qwsibb6fhruqido6.0-29",
        wallet="gjx6qwsibb6fhruqido6",
        start_layer=0,
        end_layer=29,
        tokens=4096,
        replayed_tokens=0,
        outcome="fail\x1bed",
        work_units=122_880,
    )
    lines = printed(rows_table([row]))
    assert max(map(len, lines)) <= 80 and len(lines) == 2
    assert "\x1b" not in "".join(lines) and "07417891" in lines[1] and "gjx6qwsi.0-29" in lines[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHNET_HOME", str(tmp_path))
    return tmp_path


def test_repair_sets_a_damaged_file_aside_and_leaves_sound_ones(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = home / "trackers"
    open_database(folder / "sound.db").close()
    (folder / "tracker.db").write_bytes(b"nonsense" * 1000)
    assert main(["doctor", "--repair-db"]) == 0
    said = capfd.readouterr().out
    assert "sound.db is sound" in said and "damaged" in said
    assert (folder / "sound.db").exists() and not (folder / "tracker.db").exists()
    assert [path.read_bytes() for path in folder.glob("tracker.db.damaged-*")] == [b"nonsense" * 1000]


def test_repair_with_nothing_to_repair(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--repair-db"]) == 0
    assert "no statistics file" in capfd.readouterr().out


def test_help_names_the_ways_to_join(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "node", "--help"]) == 0
    said = capsys.readouterr().out
    for flag in ("--memory", "--sessions", "--context", "--rebalance", "--shard"):
        assert flag in said
    assert json.dumps(said)


def test_false_claim_and_accelerator_are_seen_in_eighty_columns() -> None:
    fields = {
        "node_id": "gjx6qwsibb6fhruqido6.15-29",
        "wallet": "gjx6qwsibb6fhruqido6",
        "url": "http://127.0.0.1:7071",
        "model_key": "smollm2-135m",
        "revision": "00000000",
        "n_layers": 30,
        "shard_start": 15,
        "shard_end": 29,
        "dtype": "float32",
        "context_length": 8192,
        "epoch": 1,
        "state": "ready",
        "live": True,
        "suspect": False,
        "heartbeat_age_s": 1.0,
        "joined_age_s": 1.0,
        "benchmark_tokens_per_sec": 1234.5,
    }
    gpu = HardwareMessage(cpu_model="Example", accelerators=(AcceleratorMessage("Big GPU", "cuda:0", 1 << 34),))
    liar = NodeMessage(**fields, name="liar", observed_ratio=0.33, hardware=gpu)  # type: ignore[arg-type]
    new = NodeMessage(**fields, name="new")  # type: ignore[arg-type]
    lines = printed(nodes_table([liar, new]))
    assert max(map(len, lines)) <= 80 and len(lines) == 3
    assert "33%" in lines[1] and " - " in lines[2]
    assert "Big GPU" in "\n".join(printed(hardware_table([liar])))
