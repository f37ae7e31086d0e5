"""What a node checks before it starts: settings, wallet, remembered speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daemons.node.settings import NodeSettings
from daemons.node.slowed import SlowedEngine
from daemons.node.speed import read_speed, save_speed
from daemons.node.wallet import open_wallet
from meshnet.domain.engine import EngineSpeed, SessionPlan, StepItem
from meshnet.domain.errors import StartError
from meshnet.domain.ids import wallet_of
from meshnet.domain.shards import Shard
from tests.mesh.fake_engine import FakeEngine

GOOD = NodeSettings(model="smollm2-135m", shard="0-14")


def test_good_settings_give_the_shard() -> None:
    assert GOOD.checked_shard() == Shard(0, 14)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "../etc"}, "--model"),
        ({"model": ""}, "--shard 0-14"),
        ({"shard": "9-3"}, "9-3"),
        ({"shard": "all"}, "'all'"),
        ({"name": "a/b"}, "--name"),
        ({"host": "0.0.0.0"}, "--profile lan"),
        ({"host": "::"}, "--profile lan"),
        ({"host": "example.org"}, "--profile lan"),
        ({"port": 70_000}, "70000"),
        ({"threads": 0}, "--threads"),
        ({"kv_budget": "much"}, "'much'"),
        ({"delay_per_layer_ms": -1.0}, "--delay-per-layer-ms"),
        ({"memory": "some"}, "--memory"),
        ({"relay": "ws://a:7090,ftp://b:7090"}, "'ftp://b:7090'; a relay's address begins with ws:// or wss://"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(change: dict[str, object], said: str) -> None:
    with pytest.raises(StartError) as caught:
        replace(GOOD, **change).check()  # type: ignore[arg-type]
    assert said in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_is_allowed(host: str) -> None:
    replace(GOOD, host=host).check()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 1 << 30), ("512MB", 512_000_000), ("1.5k", 1500), ("1024", 1024), ("2 g", 2_000_000_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert replace(GOOD, kv_budget=text).kv_bytes() == size


def test_a_wallet_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    first = open_wallet(tmp_path / "a")
    path = tmp_path / "a" / "wallet.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert {p.name for p in path.parent.iterdir()} == {"wallet.key", "wallet.tls"}
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in path.parent.iterdir())
    assert open_wallet(tmp_path / "a").wallet == first.wallet == wallet_of(first.public_key)
    assert open_wallet(tmp_path / "b").wallet != first.wallet
    assert "private" not in repr(first)


def test_a_wallet_that_others_can_read_is_refused(tmp_path: Path) -> None:
    open_wallet(tmp_path)
    (tmp_path / "wallet.key").chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        open_wallet(tmp_path)


def test_a_damaged_wallet_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "wallet.key"
    path.touch(0o600)
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nnonsense")
    with pytest.raises(StartError, match=r"wallet\.key"):
        open_wallet(tmp_path)
    assert path.exists()


def test_speed_is_remembered_under_its_key_alone(tmp_path: Path) -> None:
    speed = EngineSpeed(10.0, 40.0, 100.0, 0.1)
    assert read_speed(tmp_path, "k") is None
    save_speed(tmp_path, "k", speed)
    assert (read_speed(tmp_path, "k"), read_speed(tmp_path, "other")) == (speed, None)
    (tmp_path / "speed.json").write_bytes(b"{half")
    assert read_speed(tmp_path, "k") is None


def test_a_slowed_engine_sleeps_for_the_layers_it_ran() -> None:
    slept: list[float] = []
    engine = SlowedEngine(FakeEngine(Shard(0, 14)), 0.01, slept.append)
    engine.open((1, 0), SessionPlan(5, 14, 10))
    engine.step([StepItem((1, 0), 0, token_ids=(1,))])
    assert slept == [pytest.approx(0.1)]
    assert engine.measure().decode_tps == pytest.approx(1 / (1 / 100 + 0.15))


def test_a_slowed_engines_output_head_is_worth_fewer_of_its_layers() -> None:
    class Measured(FakeEngine):
        """100 tokens/s: 10 layers of 0.8 ms and an output head of 2 ms."""

        def measure(self) -> EngineSpeed:
            return EngineSpeed(100.0, 400.0, 1000.0, extra={"tail_layers": 2.5})

    slowed = SlowedEngine(Measured(Shard(20, 29)), 0.0032, lambda seconds: None).measure()
    assert slowed.extra["tail_layers"] == pytest.approx(0.002 / 0.004)
    assert slowed.decode_tps == pytest.approx(1 / (10 * 0.004 + 0.002))
