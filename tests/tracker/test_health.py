from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from daemons.tracker.health import FIRST_EJECTION_S, FORGIVEN_AFTER_S, JITTER, MAX_EJECTION_S, Health
from meshnet.domain.routing import Outcome
from tests.tracker.running import MODEL, claim, node_id_of
from tests.tracker.test_fleet import ManualClock
from tests.tracker.test_planner import Mesh


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def health(clock: ManualClock) -> Health:
    return Health(clock, Random(1))


def test_five_failures_in_a_row_eject_and_a_success_between_does_not(health: Health) -> None:
    for _ in range(4):
        assert health.failed("w", broke_stream=False) is None
    health.succeeded("w")
    assert [health.failed("w", broke_stream=False) is None for _ in range(5)] == [True] * 4 + [False]
    assert health.state("w") == "ejected"


def test_broken_stream_ejects_at_once(health: Health) -> None:
    seconds = health.failed("w", broke_stream=True)
    assert seconds is not None and FIRST_EJECTION_S * (1 - JITTER) <= seconds <= FIRST_EJECTION_S
    assert health.ejected_for_s("w") == pytest.approx(seconds)


def test_ejections_double_to_their_limit_and_are_forgiven(health: Health, clock: ManualClock) -> None:
    lengths = []
    for _ in range(8):
        lengths.append(health.failed("w", broke_stream=True) or 0.0)
        clock.time += lengths[-1]
        assert health.state("w") == "half-open"
    assert all(b > a for a, b in pairwise(lengths[:5]))
    assert max(lengths) <= MAX_EJECTION_S and lengths[-1] > MAX_EJECTION_S * (1 - JITTER) - 1
    clock.time += FORGIVEN_AFTER_S + 1
    assert (health.failed("w", broke_stream=True) or 0.0) <= FIRST_EJECTION_S


def test_one_success_ends_the_trial_and_a_restart_ends_everything(health: Health, clock: ManualClock) -> None:
    health.failed("w", broke_stream=True)
    clock.time += FIRST_EJECTION_S
    assert health.succeeded("w") and health.state("w") == "ok"
    health.failed("w", broke_stream=True)
    health.restarted("w")
    assert (health.state("w"), health.failures("w")) == ("ok", 0)


def break_stream(mesh: Mesh, node_id: str) -> None:
    plan = mesh.planner.plan(MODEL, pin=[node_id])
    route, now = plan.decision.route, mesh.clock.time
    mesh.planner.observe(
        Outcome(route.model_key, route, route.signature, 1, "failed", now, now, now, 3, failed_node=route.head.node_id)
    )


def test_ejected_node_is_left_out_unless_it_is_the_last_holder() -> None:
    mesh = Mesh()
    first, second = node_id_of(1, 0, 29), node_id_of(2, 0, 29)
    mesh.fleet.register(claim(1, 0, 29, benchmark_tokens_per_sec=100.0))
    mesh.fleet.register(claim(2, 0, 29))
    break_stream(mesh, first)
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (second,)
    mesh.fleet.leave(second)
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (first,)


def test_node_on_trial_gets_one_request_at_a_time() -> None:
    mesh = Mesh()
    first, second = node_id_of(1, 0, 29), node_id_of(2, 0, 29)
    mesh.fleet.register(claim(1, 0, 29, benchmark_tokens_per_sec=100.0))
    mesh.fleet.register(claim(2, 0, 29))
    break_stream(mesh, first)
    mesh.clock.time += 15.0
    for number in (1, 2):  # their heartbeats went on meanwhile
        mesh.fleet.register(claim(number, 0, 29, benchmark_tokens_per_sec=100.0 if number == 1 else 10.0))
    plan = mesh.planner.plan(MODEL)
    assert plan.decision.route.node_ids == (first,)
    with mesh.planner.reserve(plan):
        assert mesh.planner.plan(MODEL).decision.route.node_ids == (second,)


def test_restarted_node_is_as_good_as_new() -> None:
    mesh = Mesh()
    mesh.fleet.register(claim(1, 0, 29, benchmark_tokens_per_sec=100.0))
    mesh.fleet.register(claim(2, 0, 29))
    break_stream(mesh, node_id_of(1, 0, 29))
    mesh.fleet.register(claim(1, 0, 29, benchmark_tokens_per_sec=100.0, boot="another-process"))
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(1, 0, 29),)
