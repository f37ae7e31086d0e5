"""Plans: what is chosen, what is avoided, what is counted in flight."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from daemons.tracker.fleet import Fleet
from daemons.tracker.kept import KEPT_S
from daemons.tracker.planner import Plan, Planner
from meshnet.domain.errors import InvalidRequest, NoRoute
from meshnet.domain.routing import Outcome, RoutingConfig
from meshnet.wire.messages import HeartbeatRequest
from tests.tracker.running import MODEL, claim, node_id_of
from tests.tracker.test_fleet import ManualClock


class Mesh:
    def __init__(
        self,
        learning: bool = True,
        policy: str = "adr",
        seed: int = 1,
        log: Callable[[Plan, Outcome], None] = lambda plan, outcome: None,
    ) -> None:
        self.clock = ManualClock()
        self.fleet = Fleet(self.clock)
        config = RoutingConfig(policy=policy)  # type: ignore[arg-type]
        self.planner = Planner(self.fleet, config, Random(seed), self.clock, learning, log=log)

    def beat(self, number: int, **fields: int) -> None:
        """A heartbeat of node ``number``, whatever its shard."""
        lease = next(one for one in self.fleet.leases() if one.node.name == f"n{number}")
        self.fleet.heartbeat(lease.node.node_id, HeartbeatRequest(epoch=lease.node.epoch, **fields))

    def finish(self, plan: Plan, tps: float, failed: bool = False) -> None:
        """The planned request ends: 20 tokens at this speed, or its head breaks after some."""
        route, now = plan.decision.route, self.clock.time
        ended = Outcome(
            route.model_key,
            route,
            route.signature,
            plan.epoch,
            "failed" if failed else "ok",
            now,
            now + 0.1,
            now + 0.1 + 20 / tps,
            20,
            5,
            loads=plan.loads,
            claimed_layer_s=plan.chosen.layer_s,
            failed_node=route.head.node_id if failed else None,
        )
        self.planner.observe(ended, plan)

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


def test_node_found_gone_is_left_out_until_it_is_heard_of(mesh: Mesh) -> None:
    mesh.planner.found_gone(node_id_of(3, 0, 29), 1)
    for _ in range(20):
        mesh.clock.time += 0.1
        assert node_id_of(3, 0, 29) not in mesh.planner.plan(MODEL, policy="random").decision.route.node_ids
    assert [row.why for row in mesh.planner.left_out(MODEL, mesh.planner.candidates(MODEL))] == [
        "a call found it gone, and it was not heard of since"
    ]
    mesh.beat(3)
    mesh.clock.time += 1
    routes = {mesh.planner.plan(MODEL, policy="random").decision.route.node_ids for _ in range(40)}
    assert (node_id_of(3, 0, 29),) in routes


def test_node_found_gone_is_asked_where_nobody_else_holds_its_layers_but_costs_no_reroute(mesh: Mesh) -> None:
    mesh.fleet.leave(node_id_of(3, 0, 29))
    mesh.planner.found_gone(node_id_of(2, 15, 29), 1)
    assert mesh.planner.plan(MODEL).decision.route.node_ids[-1] == node_id_of(2, 15, 29)
    with pytest.raises(NoRoute, match="15-29"):
        mesh.planner.plan(MODEL, avoid={("another", 1)})
    mesh.clock.time += 1
    mesh.beat(2)
    assert mesh.planner.plan(MODEL, avoid={("another", 1)})


def test_word_of_an_old_lease_says_nothing_of_the_new_one(mesh: Mesh) -> None:
    mesh.fleet.register(claim(3, 0, 29))
    mesh.planner.found_gone(node_id_of(3, 0, 29), 1)
    assert not any(mesh.planner.is_suspect(node) for node in mesh.planner.nodes())


def test_suspects_are_left_out_while_others_cover_the_model(mesh: Mesh) -> None:
    mesh.clock.time += 12  # all missed two
    mesh.fleet.register(claim(3, 0, 29))
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(3, 0, 29),)
    mesh.fleet.leave(node_id_of(3, 0, 29))
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(1, 0, 14), node_id_of(2, 15, 29))


def test_of_doubtful_holders_of_the_same_layers_the_least_doubtful_stays(mesh: Mesh) -> None:
    mesh.clock.time += 5
    mesh.beat(3)
    mesh.clock.time += 12  # 1 and 2 missed three, 3 missed two: all suspect, and one of them holds everything
    assert mesh.planner.plan(MODEL).decision.route.node_ids == (node_id_of(3, 0, 29),)
    why = {row.node_id: row.why for row in mesh.planner.left_out(MODEL, mesh.planner.candidates(MODEL))}
    assert why == {node_id_of(1, 0, 14): "it missed 3 heartbeats", node_id_of(2, 15, 29): "it missed 3 heartbeats"}


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


def served(seed: int, policy: str, explains: bool = False) -> list[str]:
    """What one tracker decides over a thousand events: requests, failures, heartbeats, joins and leaves."""
    mesh, events, trace = Mesh(policy=policy, seed=seed), Random(99), list[str]()
    for number, (start, end) in enumerate([(0, 14), (15, 29), (0, 29), (10, 29)], 1):
        mesh.fleet.register(claim(number, start, end, benchmark_tokens_per_sec=10.0 * number))
    for _ in range(1000):
        mesh.clock.time += events.uniform(0.01, 3.0)
        speed, kind = events.uniform(5, 50), events.random()
        for number in range(1, 5):
            mesh.beat(number, queue_depth=events.randrange(2))
        if kind < 0.02:
            mesh.fleet.register(claim(5, 0, 29))
            continue
        if explains:
            mesh.planner.explain(MODEL)
            mesh.planner.table(MODEL, "hop")
        plan = mesh.planner.plan(MODEL)
        with mesh.planner.reserve(plan):
            mesh.finish(plan, speed, failed=0.02 < kind < 0.06)
        decision = plan.decision
        trace.append(f"{decision.mode} {decision.signature} {decision.propensity!r}")
        if kind > 0.98 and mesh.fleet.get(node_id_of(5, 0, 29)) is not None:
            mesh.fleet.leave(node_id_of(5, 0, 29))
    return trace


@pytest.mark.parametrize("policy", ["adr", "hop", "thompson"])
def test_two_trackers_of_one_seed_and_the_same_events_decide_alike(policy: str) -> None:
    trace = served(7, policy)
    assert len(trace) > 950 and {line.partition(" ")[0] for line in trace} == {"scout", "exploit"}
    assert served(7, policy, explains=True) == trace
    assert served(8, policy) != trace


def test_candidates_are_kept_while_nothing_changes_and_only_then(mesh: Mesh) -> None:
    first = mesh.planner.plan(MODEL)
    assert mesh.planner.plan(MODEL).candidates is first.candidates
    with mesh.planner.reserve(first):
        busy = mesh.planner.plan(MODEL)
        assert busy.candidates is not first.candidates and max(c.loads[0] for c in busy.candidates) == 1
    assert mesh.planner.plan(MODEL).candidates is first.candidates
    mesh.beat(3, queue_depth=4)
    queued = mesh.planner.plan(MODEL).candidates
    assert 4 in {load for candidate in queued for load in candidate.loads}
    mesh.clock.time += KEPT_S + 0.1
    assert mesh.planner.plan(MODEL).candidates is not queued


def test_looking_keeps_no_candidates(mesh: Mesh) -> None:
    assert mesh.planner.candidates(MODEL) is not mesh.planner.candidates(MODEL)
    explained = mesh.planner.explain(MODEL)
    assert mesh.planner.plan(MODEL).candidates is not explained.candidates


def test_a_failure_is_seen_by_the_very_next_choice(mesh: Mesh) -> None:
    plan = mesh.planner.plan(MODEL)
    mesh.finish(plan, 10.0, failed=True)
    left = {node_id for candidate in mesh.planner.plan(MODEL).candidates for node_id in candidate.route.node_ids}
    assert left and plan.decision.route.head.node_id not in left


def test_pinned_and_greedy_plans_know_their_loads_and_claims_too(mesh: Mesh) -> None:
    mesh.beat(2, queue_depth=3)
    plan = mesh.planner.plan(MODEL, pin=[node_id_of(1, 0, 14), node_id_of(2, 15, 29)])
    assert plan.loads == (0, 3) and plan.chosen.layer_s == pytest.approx((1 / 150, 1 / 150))
    greedy = Mesh(learning=False)
    greedy.fleet.register(claim(1, 0, 29, benchmark_tokens_per_sec=3.0))
    assert greedy.planner.plan(MODEL).chosen.layer_s == pytest.approx((1 / 90,))


def test_learned_speed_ends_with_the_process_that_had_it_and_not_with_a_lapsed_lease() -> None:
    mesh = Mesh()
    node_id = node_id_of(1, 0, 29)
    mesh.fleet.register(claim(1, 0, 29))
    for _ in range(3):
        mesh.finish(mesh.planner.plan(MODEL), 2.0)
    learned = mesh.planner.memory.hops.layer_s(node_id, 1 / 300)
    assert learned > 2 / 300
    mesh.fleet.leave(node_id)
    mesh.fleet.register(claim(1, 0, 29))
    assert mesh.planner.memory.hops.layer_s(node_id, 1 / 300) == learned
    mesh.fleet.leave(node_id)
    mesh.fleet.register(claim(1, 0, 29, boot="another-boot"))
    assert mesh.planner.memory.hops.layer_s(node_id, 1 / 300) == 1 / 300


def test_left_out_nodes_hear_why(mesh: Mesh) -> None:
    mesh.fleet.register(claim(4, 3, 9))
    mesh.fleet.register(claim(5, 0, 14, state="loading"))
    mesh.finish(mesh.planner.plan(MODEL, pin=[node_id_of(3, 0, 29)]), 1.0, failed=True)
    why = {row.node_id: row.why for row in mesh.planner.left_out(MODEL, mesh.planner.candidates(MODEL))}
    assert why[node_id_of(5, 0, 14)] == "it is loading"
    assert why[node_id_of(4, 3, 9)] == "the kept routes need none of its layers"
    assert why[node_id_of(3, 0, 29)].startswith("it failed and is ejected for another")
    assert list(why) == sorted(why)


def test_every_decision_is_logged_with_what_it_was_made_of() -> None:
    seen: list[tuple[Plan, Outcome]] = []
    mesh = Mesh(log=lambda plan, outcome: seen.append((plan, outcome)))
    mesh.fleet.register(claim(1, 0, 29))
    plan = mesh.planner.plan(MODEL)
    mesh.finish(plan, 10.0)
    ((logged, outcome),) = seen
    assert logged is plan and outcome.status == "ok" and len(logged.candidates) == 1


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


def test_node_that_nobody_can_dial_is_in_no_plan_and_named(mesh: Mesh) -> None:
    blocked = node_id_of(3, 0, 29)
    mesh.planner.why_blocked = lambda node: "cannot be dialled: closed" if node.node_id == blocked else ""
    assert blocked not in mesh.planner.plan(MODEL).decision.route.node_ids
    assert [(row.node_id, row.why) for row in mesh.planner.left_out(MODEL, mesh.planner.candidates(MODEL))] == [
        (blocked, "cannot be dialled: closed")
    ]


def load_of(mesh: Mesh, node_id: str) -> int:
    return next(node.load for node in mesh.planner.nodes() if node.node_id == node_id)


def test_what_a_heartbeat_counted_of_our_calls_ends_with_them_and_what_is_others_stays(mesh: Mesh) -> None:
    node_id = node_id_of(3, 0, 29)
    plan = mesh.planner.plan(MODEL, pin=[node_id])
    mesh.beat(3, queue_depth=1)  # another tracker's call
    mesh.clock.time += 1.0
    with mesh.planner.reserve(plan):
        mesh.clock.time += 1.0
        mesh.beat(3, queue_depth=2)
        assert load_of(mesh, node_id) == 2
    assert load_of(mesh, node_id) == 1
    mesh.clock.time += 1.0
    with mesh.planner.reserve(plan):  # begun and ended since that heartbeat, which knows nothing of it
        mesh.clock.time += 1.0
    assert load_of(mesh, node_id) == 1


def test_candidates_see_at_once_that_a_counted_call_ended(mesh: Mesh) -> None:
    plan = mesh.planner.plan(MODEL, pin=[node_id_of(3, 0, 29)])
    with mesh.planner.reserve(plan):
        mesh.clock.time += 0.1
        mesh.beat(3, queue_depth=1)
        mesh.planner.plan(MODEL)
    assert {load for candidate in mesh.planner.plan(MODEL).candidates for load in candidate.loads} == {0}


def test_heartbeat_of_a_later_lease_did_not_count_a_call_of_the_one_before(mesh: Mesh) -> None:
    plan = mesh.planner.plan(MODEL, pin=[node_id_of(3, 0, 29)])
    with mesh.planner.reserve(plan):
        mesh.fleet.register(claim(3, 0, 29, boot="restarted"))
        mesh.beat(3, queue_depth=1)
    assert load_of(mesh, node_id_of(3, 0, 29)) == 1


@pytest.mark.parametrize("heads", [1, 9])
def test_with_learning_off_the_table_gives_all_to_the_route_that_is_used(heads: int) -> None:
    mesh = Mesh(learning=False)
    mesh.fleet.register(claim(1, 15, 29))
    mesh.fleet.register(claim(2, 0, 20, benchmark_tokens_per_sec=0.1))  # reaches furthest; the last of nine by prior
    for number in range(3, 2 + heads):
        mesh.fleet.register(claim(number, 0, 14, benchmark_tokens_per_sec=50.0))
    used = mesh.planner.plan(MODEL).decision.signature
    shares = {row.candidate.signature: row.expected_share for row in mesh.planner.table(MODEL)}
    assert shares[used] == 1.0 and sum(shares.values()) == 1.0 and len(shares) == heads
    asked = mesh.planner.table(MODEL, "random")  # a request may name a policy all the same
    assert sum(row.expected_share for row in asked) == pytest.approx(1.0)
    assert max(row.expected_share for row in asked) < 1.0 or len(asked) == 1
