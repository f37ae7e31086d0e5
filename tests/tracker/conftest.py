from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.tracker.running import Running, run_tracker


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with run_tracker() as tracker:
        yield tracker
