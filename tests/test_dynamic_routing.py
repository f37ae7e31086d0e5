"""ADR-0021 as a whole: what the record promises of the default, on meshes like the one that made it necessary."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from meshnet.domain.candidates import enumerate_routes
from meshnet.domain.ids import ModelKey, Revision, Wallet, make_node_id
from meshnet.domain.nodes import Node
from meshnet.domain.policies import Router
from meshnet.domain.routes import Route
from meshnet.domain.routing import Outcome, RoutingConfig, TopologyChange
from meshnet.domain.shards import Shard

MODEL = ModelKey("qwen3.6-35b-a3b")
N_LAYERS = 40
GPU_TPS, CPU_TPS = 60.0, 8.0


def node(wallet: str, start: int, end: int, tps: float, **changes) -> Node:
    shard = Shard(start, end)
    made = Node(
        make_node_id(Wallet(wallet), shard),
        Wallet(wallet),
        f"http://{wallet}",
        MODEL,
        Revision("r"),
        N_LAYERS,
        shard,
        benchmark_tokens_per_sec=tps,
    )
    return replace(made, **changes)


GPU = node("gpu", 0, 21, GPU_TPS)
CPU = node("cpu", 0, 39, CPU_TPS)


def routes(*nodes: Node) -> dict[str, Route]:
    """Candidates by the wallet of their head."""
    return {c.route.head.node_id.partition(".")[0]: c.route for c in enumerate_routes(nodes, MODEL)}


def served(router: Router, route: Route, tps: float, at: float, tokens: int = 100) -> Outcome:
    return Outcome(
        MODEL, route, route.signature, router.epoch(MODEL), "ok", at - tokens / tps, at - 1.0, at, tokens, 20
    )


def mesh(**config) -> tuple[Router, dict[str, Route]]:
    return Router(RoutingConfig(**config)), routes(GPU, CPU)


def test_mixed_topology_gives_both_routes():
    found = routes(GPU, CPU)
    assert {route.signature for route in found.values()} == {
        f"{MODEL} | gpu.0-21[0-21] -> cpu.0-39[22-39]",
        f"{MODEL} | cpu.0-39[0-39]",
    }


def test_hybrid_starts_its_second_hop_at_layer_22_and_its_head_is_the_routes_head():
    hybrid = routes(GPU, CPU)["gpu"]
    assert hybrid.head.url == "http://gpu" and (hybrid.head.start_layer, hybrid.head.end_layer) == (0, 21)
    assert (hybrid.tail.url, hybrid.tail.start_layer, hybrid.tail.end_layer) == ("http://cpu", 22, 39)


def test_hybrids_prior_is_its_bottleneck():
    priors = {c.route.head.node_id: c.prior_tps for c in enumerate_routes([GPU, CPU], MODEL)}
    assert priors == {"gpu.0-21": CPU_TPS, "cpu.0-39": CPU_TPS}
    busy = enumerate_routes([GPU, replace(CPU, queue_depth=3)], MODEL)
    assert {c.prior_tps for c in busy} == {CPU_TPS / 4}
    doubted = enumerate_routes([replace(GPU, reputation=0.1), CPU], MODEL)
    assert {c.route.head.node_id: c.prior_tps for c in doubted}["gpu.0-21"] == pytest.approx(GPU_TPS * 0.1)


def test_cold_start_is_deterministic_and_takes_the_best_prior():
    router = Router(RoutingConfig())
    candidates = enumerate_routes([GPU, CPU, node("fast", 0, 39, 20.0)], MODEL)
    chosen = {router.choose(candidates, 0.0, Random(seed)).route.head.node_id for seed in range(50)}
    assert chosen == {"fast.0-39"}


def test_first_sample_is_the_arms_speed_and_later_ones_blend_by_mass():
    router, found = mesh()
    router.observe(served(router, found["gpu"], 20.0, at=0.0))
    router.observe(served(router, found["gpu"], 50.0, at=600.0))
    arm = router.memory.arms.arm(MODEL, found["gpu"].signature, 600.0)
    assert (arm.tps, arm.mass) == (pytest.approx((0.5 * 20 + 50) / 1.5), 1.5)


def test_an_unmeasured_arm_decays_out_of_the_exploit_pool_after_a_half_life():
    router, found = mesh()
    router.observe(served(router, found["gpu"], 20.0, at=0.0))
    arms = router.memory.arms
    assert arms.arm(MODEL, found["gpu"].signature, 600.0).status == "proven"
    assert arms.arm(MODEL, found["gpu"].signature, 600.1).status == "decayed"


@pytest.mark.parametrize("kind", ["join", "leave", "shard"])
def test_topology_change_demotes_to_stale_keeps_the_value_and_one_sample_proves_anew(kind):
    router, found = mesh()
    router.observe(served(router, found["gpu"], 20.0, at=0.0))
    router.on_topology(TopologyChange(MODEL, CPU.node_id, kind))
    arm = router.memory.arms.arm(MODEL, found["gpu"].signature, 0.0)
    assert (arm.status, arm.tps) == ("stale", 20.0)
    router.observe(served(router, found["gpu"], 20.0, at=1.0))
    assert router.memory.arms.arm(MODEL, found["gpu"].signature, 1.0).status == "proven"


def test_near_empty_answers_are_rejected():
    router, found = mesh()
    assert not router.observe(served(router, found["gpu"], 1000.0, at=0.0, tokens=1))
    assert not router.observe(served(router, found["gpu"], 1000.0, at=0.0, tokens=7))
    assert router.memory.arms.arm(MODEL, found["gpu"].signature, 0.0).status == "unsampled"


def test_exploit_traffic_splits_as_measured_speeds():
    router, found = mesh(explore_share=0.0)
    router.observe(served(router, found["gpu"], 60.0, at=0.0))
    router.observe(served(router, found["cpu"], 40.0, at=0.0))
    candidates, rng = enumerate_routes([GPU, CPU], MODEL), Random(2021)
    counts = Counter(router.choose(candidates, 0.0, rng).route.head.node_id for _ in range(4000))
    assert counts[GPU.node_id] / 4000 == pytest.approx(0.6, abs=0.031)


def test_scouts_take_the_explore_share():
    router, found = mesh()
    router.observe(served(router, found["gpu"], 60.0, at=0.0))
    candidates, rng = enumerate_routes([GPU, CPU], MODEL), Random(2021)
    decisions = [router.choose(candidates, 0.0, rng) for _ in range(4000)]
    scouts = [d for d in decisions if d.mode == "scout"]
    assert len(scouts) / 4000 == pytest.approx(0.3, abs=0.029)
    assert {d.route.head.node_id for d in scouts} == {CPU.node_id}


def test_a_node_that_returns_with_another_shard_is_another_arm():
    before, after = routes(GPU, CPU)["gpu"], routes(node("gpu", 0, 19, GPU_TPS), CPU)["gpu"]
    assert before.signature != after.signature


def test_table_has_a_row_a_candidate_with_shares_that_sum_to_one():
    router, found = mesh()
    router.observe(served(router, found["gpu"], 60.0, at=0.0))
    candidates = enumerate_routes([GPU, CPU], MODEL)
    rows = {row.candidate.route.head.node_id: row for row in router.table(candidates, 30.0)}
    gpu, cpu = rows[GPU.node_id], rows[CPU.node_id]
    assert (gpu.status, gpu.tps, gpu.coefficient, gpu.samples) == ("proven", pytest.approx(60.0), 1.0, 1)
    assert (cpu.status, cpu.tps, cpu.coefficient, cpu.samples) == ("unsampled", None, None, 0)
    assert gpu.mass == 0.5 ** (30 / 600)
    assert (gpu.expected_share, cpu.expected_share) == pytest.approx((0.7, 0.3))
    assert list(rows) and router.table(candidates, 30.0) == router.table(candidates, 30.0)


def test_both_routes_get_measured_and_traffic_shifts_to_the_faster():
    router, _found = mesh()
    truth, rng, late = {GPU.node_id: 25.0, CPU.node_id: 5.0}, Random(5), Counter()
    for turn in range(300):
        now = 10.0 * turn
        candidates = router.propose([GPU, CPU], MODEL, turn)
        route = router.choose(candidates, now, rng).route
        router.observe(served(router, route, truth[route.head.node_id], now))
        if turn >= 100:
            late[route.head.node_id] += 1
    assert late[GPU.node_id] / 200 == pytest.approx(25 / 30, abs=0.1)
    assert late[CPU.node_id] > 0


def test_two_routers_of_the_same_seed_and_events_decide_alike():
    def play() -> list[str]:
        router, rng, said = Router(RoutingConfig()), Random(9), list[str]()
        for turn in range(200):
            candidates = router.propose([GPU, CPU, node("late", 20, 39, 30.0)][: 2 + turn // 100], MODEL, turn)
            decision = router.choose(candidates, float(turn), rng)
            router.observe(served(router, decision.route, 10.0 + turn % 7, float(turn)))
            said.append(f"{decision.mode} {decision.signature}")
        return said

    assert play() == play()


def test_a_best_arm_that_turns_five_times_slower_falls_below_an_even_share_within_two_half_lives():
    router, found = mesh()
    truth, rng, turns, taken = {GPU.node_id: 25.0, CPU.node_id: 12.0}, Random(4), 0, Counter()
    for turn in range(240):
        now = 10.0 * turn
        if turn == 120:
            truth[GPU.node_id] = 5.0
        candidates = router.propose([GPU, CPU], MODEL, turn)
        route = router.choose(candidates, now, rng).route
        router.observe(served(router, route, truth[route.head.node_id], now))
        if turn >= 230:
            shares = {row.candidate.signature: row.expected_share for row in router.table(candidates, now)}
            taken["below"] += shares[found["gpu"].signature] < 0.5
            turns += 1
    assert taken["below"] == turns


def test_two_trackers_that_share_nodes_do_not_herd():
    """Each sees only its own calls in flight; with hop no node takes over twice its fair share of equal nodes."""
    nodes = [node(f"n{i}", 0, 39, 10.0) for i in range(4)]
    routers, rng, counts = [Router(RoutingConfig(policy="hop")) for _ in range(2)], Random(6), Counter()
    for turn in range(200):
        for router in routers:
            candidates = router.propose(nodes, MODEL, turn)
            route = router.choose(candidates, float(turn), rng).route
            counts[route.head.node_id] += 1
            router.observe(served(router, route, 10.0 * rng.uniform(0.8, 1.2), float(turn)))
    assert max(counts.values()) <= 2 * 400 / 4
