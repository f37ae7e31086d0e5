"""The wall clock is the system's, unless a test has ordered otherwise."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from daemons.kit.clock import DRIFT_S, SteadyClock, seconds_since_boot, wall_clock
from meshnet.domain.errors import StartError


def test_without_the_testing_switch_no_clock_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "offset").write_text("3600")
    assert wall_clock({"MESHNET_CLOCK": str(tmp_path / "offset")}, lambda: 5.0)() == 5.0
    assert wall_clock({"MESHNET_TESTING": "1"}, lambda: 5.0)() == 5.0


def test_clock_is_off_by_what_the_file_says_now(tmp_path: Path) -> None:
    path = tmp_path / "offset"
    path.write_text("-3600")
    wall = wall_clock({"MESHNET_CLOCK": str(path), "MESHNET_TESTING": "1"}, lambda: 5000.0)
    assert wall() == 1400.0
    path.write_text("10")
    assert wall() == 5010.0


@pytest.mark.parametrize("text", [None, "", "an hour"])
def test_file_that_says_no_number_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "offset").write_text(text)
    with pytest.raises(StartError, match="MESHNET_CLOCK"):
        wall_clock({"MESHNET_CLOCK": str(tmp_path / "offset"), "MESHNET_TESTING": "1"})


class Clocks:
    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.mono = 50.0
        self.steady = SteadyClock(lambda: self.wall, lambda: self.mono)

    def run(self, seconds: float, drift: float = 0.0) -> None:
        self.mono += seconds
        self.wall += seconds + drift


def test_steady_clock_follows_drift_and_no_jump() -> None:
    clocks = Clocks()
    for _ in range(1000):
        clocks.run(5.0, drift=0.1)
        clocks.steady()
    assert clocks.steady() == pytest.approx(clocks.wall)
    clocks.wall += 3600.0
    clocks.run(5.0)
    assert clocks.steady() == pytest.approx(clocks.wall - 3600.0)
    assert clocks.steady.jump_s() == pytest.approx(3600.0)
    clocks.wall -= 3600.0
    clocks.run(5.0)
    assert clocks.steady() == pytest.approx(clocks.wall)


def test_steady_clock_takes_the_systems_time_when_it_is_told_that_its_own_is_wrong() -> None:
    clocks = Clocks()
    assert not clocks.steady.settle()
    clocks.wall -= 3600.0
    assert clocks.steady.settle() and not clocks.steady.settle()
    assert clocks.steady() == pytest.approx(clocks.wall)


def test_steady_clock_settles_only_for_what_is_of_now_by_the_systems() -> None:
    clocks = Clocks()
    clocks.wall += 3600.0  # It was an hour slow at the start, and was set right.
    assert not clocks.steady.settle_for(-7200.0) and not clocks.steady.settle_for(100.0)
    assert clocks.steady.settle_for(-3599.0)
    assert clocks.steady() == pytest.approx(clocks.wall)


def test_steady_clock_by_which_somebody_was_let_in_is_set_by_nobodys_word() -> None:
    clocks = Clocks()
    clocks.steady.hold()
    clocks.wall -= 3600.0
    assert not clocks.steady.settle_for(3600.0), "a captured signature of an hour ago"
    assert clocks.steady() == pytest.approx(clocks.wall + 3600.0)


def test_seconds_since_boot_go_on_as_the_wall_does() -> None:
    steady = SteadyClock(time.time, seconds_since_boot)
    assert abs(steady() - time.time()) < DRIFT_S and seconds_since_boot() <= seconds_since_boot()
