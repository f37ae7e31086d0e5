"""The pictures that matter, compared cell by cell. After a change that is meant: look at them
(``python -m tests.tui.shots OUT``), then ``pytest tests/tui/test_pictures.py --snapshot-update``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.tui.pictures import PICTURES, Picture


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times are local: pictures are made in UTC, without the colours of whoever runs the tests."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.slow
@pytest.mark.parametrize("picture", [pytest.param(picture, id=picture.name) for picture in PICTURES])
def test_picture(picture: Picture, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(picture.app(), terminal_size=picture.size, run_before=picture.prepare)
