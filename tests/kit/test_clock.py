"""The wall clock is the system's, unless a test has ordered otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemons.kit.clock import wall_clock
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
