"""Plans: what is chosen, what is avoided, what is counted in flight."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Planner
from meshnet.domain.errors import InvalidRequest, NoRoute
from meshnet.domain.routing import Outcome, RoutingConfig
from tests.tracker.running import MODEL, claim, node_id_of
from tests.tracker.test_fleet import ManualClock


class Mesh:
    def __init__(self, learning: bool = True) -> None:
        self.clock = ManualClock()
        self.fleet = Fleet(self.clock)
        self.planner = Planner(self.fleet, RoutingConfig(), Random(1), self.clock, learning)

    def sample(self, seconds: float = 1.0) -> str:
        """One served request; returns its route."""
        plan = self.planner.plan(MODEL)
        route = plan.decision.route
        now = self.clock.time
        self.planner.observe(
            Outcome(route.model_key, route, route.signature, plan.epoch, "ok", now, now + 0.1, now + seconds, 20)
        )
        return route.signature


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh()
    for number, (start, end) in enumerate([(0, 14), (15, 29), (0, 29)], 1):
        mesh.fleet.register(claim(number, start, end))
    return mesh


def test_routes_begin_at_their_own_head_and_abut(mesh: Mesh) -> None:
    for _ in range(20):
        mesh.clock.time += 1
        hops = mesh.planner.plan(MODEL).decision.route.hops
        assert hops[0].start_layer == 0 and hops[-1].end_layer == 29
        assert all(b.start_layer == a.end_layer + 1 for a, b in pairwise(hops))
        mesh.sample()


def test_in_flight_is_counted_and_released_on_every_way_out(mesh: Mesh) -> None:
    plan = mesh.planner.plan(MODEL, pin=[node_id_of(1, 0, 14), node_id_of(2, 15, 29)])
    with pytest.raises(RuntimeError), mesh.planner.reserve(plan), mesh.planner.reserve(plan):
        assert [node.in_flight for node in sorted(mesh.planner.nodes(), key=lambda n: n.shard)] == [2, 0, 2]
        raise RuntimeError("a call that breaks")
    assert all(node.in_flight == 0 for node in mesh.planner.nodes())


def test_avoided_nodes_are_in_no_plan(mesh: Mesh) -> None:
    avoid = {(node_id_of(3, 0, 29), 1)}
    hops = mesh.planner.plan(MODEL, avoid=avoid).decision.route.node_ids
    assert hops == (node_id_of(1, 0, 14), node_id_of(2, 15, 29))
    with pytest.raises(NoRoute, match="15-29"):
        mesh.planner.plan(MODEL, avoid={*avoid, (node_id_of(2, 15, 29), 1)})


def test_avoided_node_is_welcome_under_another_epoch(mesh: Mesh) -> None:
    avoid = {(node_id_of(n, *shard), 1) for n, shard in ((1, (0, 14)), (2, (15, 29)), (3, (0, 29)))}
    mesh.fleet.register(claim(3, 0, 29))
    assert mesh.planner.plan(MODEL, avoid=avoid).decision.route.node_ids == (node_id_of(3, 0, 29),)


def test_suspects_are_left_out_while_others_cover_the_model(mesh: Mesh) -> None:
    mesh.clock.time += 12  # all missed two
    mesh.fleet.register(claim(3, 0, 29))
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(3, 0, 29),)
    mesh.fleet.leave(node_id_of(3, 0, 29))
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(1, 0, 14), node_id_of(2, 15, 29))


def test_learning_off_is_greedy_fallback() -> None:
    mesh = Mesh(learning=False)
    mesh.fleet.register(claim(1, 0, 14))
    mesh.fleet.register(claim(2, 15, 29))
    decision = mesh.planner.plan(MODEL).decision
    assert (decision.mode, len(decision.route.hops)) == ("greedy-fallback", 2)


def test_epoch_rises_on_join_leave_and_shard_change_only(mesh: Mesh) -> None:
    before = mesh.planner.epoch(MODEL)
    mesh.fleet.register(claim(3, 0, 29, boot="restarted"))
    assert mesh.planner.epoch(MODEL) == before
    mesh.fleet.register(claim(4, 0, 29))
    mesh.fleet.leave(node_id_of(4, 0, 29))
    assert mesh.planner.epoch(MODEL) == before + 2


def test_explain_changes_nothing(mesh: Mesh) -> None:
    for _ in range(3):
        mesh.sample()
    twin = Mesh()
    for number, (start, end) in enumerate([(0, 14), (15, 29), (0, 29)], 1):
        twin.fleet.register(claim(number, start, end))
    for _ in range(3):
        twin.sample()
    explained = [mesh.planner.explain(MODEL).decision.signature for _ in range(2)]
    mesh.planner.table(MODEL)
    chosen = [mesh.planner.plan(MODEL).decision.signature for _ in range(20)]
    assert explained == [chosen[0]] * 2
    assert chosen == [twin.planner.plan(MODEL).decision.signature for _ in range(20)]


def test_unknown_policy_is_refused_by_name(mesh: Mesh) -> None:
    with pytest.raises(InvalidRequest) as caught:
        mesh.planner.plan(MODEL, policy="best")
    assert caught.value.param == "route_policy"


def test_failure_lowers_the_culprits_reputation_alone(mesh: Mesh) -> None:
    plan = mesh.planner.plan(MODEL, pin=[node_id_of(1, 0, 14), node_id_of(2, 15, 29)])
    route, now = plan.decision.route, mesh.clock.time
    bad = node_id_of(2, 15, 29)
    mesh.planner.observe(
        Outcome(route.model_key, route, route.signature, plan.epoch, "failed", now, None, now + 1, 0, failed_node=bad)
    )
    shares = {node.node_id: node.reputation for node in mesh.planner.nodes()}
    assert shares[bad] < 1 and shares[node_id_of(1, 0, 14)] == 1
