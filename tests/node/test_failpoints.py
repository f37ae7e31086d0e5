"""Fail points: honoured only when testing, refused when misspelt, reached once."""

from __future__ import annotations

import pytest

from daemons.node.failpoints import FailingEngine, FailPoint, fail_point_of
from meshnet.domain.engine import SessionPlan, StepItem
from meshnet.domain.errors import NodeFailed, StartError
from meshnet.domain.shards import Shard
from tests.mesh.fake_engine import FakeEngine

KEY = (1, 1)


def test_without_the_testing_switch_nothing_is_ordered() -> None:
    assert fail_point_of({"MESHNET_FAIL": "token=5:exit"}) is None
    assert fail_point_of({"MESHNET_FAIL": "token=5:exit", "MESHNET_TESTING": "0"}) is None
    assert fail_point_of({"MESHNET_TESTING": "1"}) is None


def test_orders_are_read() -> None:
    switch = {"MESHNET_TESTING": "1"}
    assert fail_point_of({**switch, "MESHNET_FAIL": "token=5:exit"}) == FailPoint("token", "exit", 5)
    assert fail_point_of({**switch, "MESHNET_FAIL": "prefill:oom"}) == FailPoint("prefill", "oom")


@pytest.mark.parametrize("text", ["token:exit", "token=x:exit", "open:explode", "prefil:exit", "open=3:nan", "exit"])
def test_misspelt_order_is_an_error(text: str) -> None:
    with pytest.raises(StartError, match="MESHNET_FAIL"):
        fail_point_of({"MESHNET_TESTING": "1", "MESHNET_FAIL": text})


def test_point_is_reached_at_its_token_and_once() -> None:
    engine = FailingEngine(FakeEngine(Shard(0, 29)), FailPoint("token", "error", 3))
    engine.open(KEY, SessionPlan(0, 29, 20))
    ids, position, tokens, failures = (5, 6), 0, 0, 0
    while tokens < 6:
        try:
            (result,) = engine.step([StepItem(KEY, position, token_ids=ids, sample=True)])
        except NodeFailed:
            failures += 1
            assert tokens == 2
            continue
        assert result.token is not None
        position += len(ids)
        ids, tokens = (result.token.token_id,), tokens + 1
    assert failures == 1


def test_out_of_memory_when_a_session_opens() -> None:
    engine = FailingEngine(FakeEngine(Shard(0, 29)), FailPoint("open", "oom"))
    with pytest.raises(MemoryError):
        engine.open(KEY, SessionPlan(0, 29, 20))
    engine.open(KEY, SessionPlan(0, 29, 20))
