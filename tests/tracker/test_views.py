"""What the tracker shows, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from meshnet.client.http import open_http
from meshnet.domain.errors import EpochChanged, Forbidden, NoRoute, NotFound
from meshnet.wire import api
from meshnet.wire.messages import HeartbeatRequest
from meshnet.wire.routing import EventMessage, ExplainRequest
from tests.tracker.fake_head import Talk, answering
from tests.tracker.running import MODEL, Running, body, claim, node_id_of, run_tracker


async def test_nodes_list_lease_claims_and_last_heartbeat(running: Running) -> None:
    given = await running.client.register(claim(1, 0, 14, state="loading", prefill_tokens_per_sec=200.0))
    assert (given.epoch, given.tracker_id, given.heartbeat_interval_s) == (1, "trackerid", 5.0)
    await running.client.heartbeat(
        given.node_id, HeartbeatRequest(epoch=1, queue_depth=2, in_flight=3, rss_bytes=4, kv_free_bytes=5)
    )
    (node,) = (await running.client.nodes()).nodes
    assert (node.node_id, node.name, node.state, node.live, node.suspect) == (
        given.node_id, "n1", "ready", True, False,
    )  # fmt: skip
    assert (node.queue_depth, node.in_flight, node.rss_bytes, node.kv_free_bytes) == (2, 3, 4, 5)
    assert node.prefill_tokens_per_sec == 200.0 and node.heartbeat_age_s < 5


async def test_lease_errors_have_codes_that_say_register_again(running: Running) -> None:
    with pytest.raises(NotFound) as unknown:
        await running.client.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=1))
    assert unknown.value.code == "unknown_lease"
    await running.client.register(claim(1, 0, 14))
    with pytest.raises(EpochChanged):
        await running.client.heartbeat(node_id_of(1, 0, 14), HeartbeatRequest(epoch=4))
    with pytest.raises(Forbidden) as forged:
        await running.client.register(claim(1, 0, 14, wallet="aaaaaaaaaaaaaaaaaaaa"))
    assert forged.value.code == "not_yours"


async def test_own_api_refuses_unknown_fields_and_large_bodies(running: Running) -> None:
    async with open_http() as http:
        response = await http.post(running.url + api.EXPLAIN, json={"modle": "x"})
        assert response.status_code == 400 and response.json()["error"]["param"] == "modle"
        large, kind = b" " * (api.MAX_CONTROL_BODY_BYTES + 1), {"Content-Type": "application/json"}
        response = await http.post(running.url + api.EXPLAIN, content=large, headers=kind)
        assert response.status_code == 413 and response.json()["error"]["code"] == "body_too_large"


async def test_models_and_readiness_follow_coverage(running: Running) -> None:
    assert not await running.client.ready()
    await running.client.register(claim(1, 0, 14))
    (model,) = (await running.client.models()).data
    assert (model.id, model.ready, model.coverage_deficit, model.nodes) == (MODEL, False, 0.5, 1)
    await running.client.register(claim(2, 10, 29))
    assert (await running.client.model(MODEL)).ready and await running.client.ready()
    assert (await running.client.model(MODEL)).max_model_len == 8192


async def test_coverage_is_layer_by_layer(running: Running) -> None:
    await running.client.register(claim(1, 0, 9))
    await running.client.register(claim(2, 5, 19))
    (model,) = (await running.client.coverage(MODEL)).models
    assert model.depths == (1,) * 5 + (2,) * 5 + (1,) * 10 + (0,) * 10
    assert (model.gaps, model.single) == (("20-29",), ("0-4", "10-19"))
    assert model.loss == {node_id_of(1, 0, 9): "0-4", node_id_of(2, 5, 19): "10-19"}
    with pytest.raises(NotFound):
        await running.client.coverage("nope")


async def test_routing_shares_sum_to_one_and_reading_changes_nothing(running: Running) -> None:
    await running.head(1)
    await running.head(2)
    for _ in range(3):
        await running.client.ask(body())
    first, second = (await running.client.routing(MODEL)).models[0], (await running.client.routing()).models[0]
    assert sum(row.expected_share for row in first.candidates) == pytest.approx(1)
    assert sum(row.actual_share or 0.0 for row in first.candidates) == pytest.approx(1)
    assert [r.signature for r in first.candidates] == [r.signature for r in second.candidates]
    assert sum(row.samples for row in second.candidates) == 3
    assert second.topology_epoch == 2


async def test_actual_shares_are_of_the_calls_and_unknown_before_any(running: Running) -> None:
    head, other = await running.head(1), await running.head(2)
    assert {row.actual_share for row in (await running.client.routing(MODEL)).models[0].candidates} == {None}
    for node_id in (head.node_id, head.node_id, head.node_id, other.node_id):
        await running.client.ask(body(route=[node_id]))
    rows = {row.hops[0].node_id: row for row in (await running.client.routing(MODEL)).models[0].candidates}
    assert (rows[head.node_id].actual_share, rows[other.node_id].actual_share) == (0.75, 0.25)


async def test_spread_is_shown_from_the_second_sample_on(running: Running) -> None:
    await running.head(1)
    await running.client.ask(body())
    (row,) = (await running.client.routing(MODEL)).models[0].candidates
    assert row.learned_tps and row.spread_tps is None
    await running.client.ask(body())
    (row,) = (await running.client.routing(MODEL)).models[0].candidates
    assert row.spread_tps and row.learned_tps and row.samples == 2


async def test_with_learning_off_the_table_says_what_is_used() -> None:
    async with run_tracker(route_learning=False) as running:
        await running.head(1)
        await running.head(2, benchmark_tokens_per_sec=50.0)
        answer = await running.client.ask(body())
        table = await running.client.routing(MODEL)
        assert table.config.policy == answer.meshnet["mode"] == "greedy-fallback"
        shares = {row.signature: row.expected_share for row in table.models[0].candidates}
        assert shares[answer.meshnet["route"]] == 1.0 and len(shares) == 2 and sum(shares.values()) == 1.0
        assert not any(row.next_scout for row in table.models[0].candidates)


async def test_explain_says_what_and_why_without_a_call(running: Running) -> None:
    await running.head(1)
    await running.client.register(claim(2, 0, 14, state="loading"))
    answer = await running.client.explain(ExplainRequest(model=MODEL))
    assert answer.decision is not None and answer.decision.mode == "scout"
    assert answer.left_out == ((node_id_of(2, 0, 14), "it is loading"),)
    assert not (await running.client.calls()).calls


async def test_call_wall_is_newest_first_pages_and_filters(running: Running) -> None:
    head = await running.head(1)
    for seed in range(5):
        await running.client.ask(body(seed=seed))
    page = await running.client.calls(limit=2)
    assert [call.seq for call in page.calls] == [5, 4] and page.next_before == 4
    rest = await running.client.calls(limit=10, before=page.next_before)
    assert [call.seq for call in rest.calls] == [3, 2, 1] and rest.next_before is None
    assert len((await running.client.calls(node=head.node_id[:8])).calls) == 5
    assert not (await running.client.calls(outcome="failed")).calls
    call = await running.client.call(page.calls[0].call_id)
    assert call.attempts[0].decision.why and call.ttft_s is not None and call.tps is not None


async def test_hop_times_reach_the_wall(running: Running) -> None:
    head = await running.head(1)
    head.script = answering(4, hop_us=((10, 200),))
    await running.client.ask(body())
    (hop,) = (await running.client.calls()).calls[0].attempts[0].hops
    assert (hop.queued_us, hop.computing_us, hop.name) == (10, 200, "n1")


async def test_running_call_is_on_the_wall(running: Running) -> None:
    head = await running.head(1)

    async def script(talk: Talk) -> None:
        await talk.say(2)
        await talk.hang()

    head.script = script
    async with running.client.chat(body()) as stream:
        (call,) = (await running.client.calls()).calls
        assert (call.outcome, call.call_id) == ("running", stream.call_id)


async def test_events_come_live_and_resume_after_the_last_id(running: Running) -> None:
    async with running.client.events(after=0) as events:
        await running.head(1)
        await running.client.ask(body())
        seen: list[EventMessage] = []
        async for event in events:
            seen.append(event)
            if event.kind == "call.finished":
                break
    assert [event.kind for event in seen] == [
        "node.joined", "call.accepted", "call.routed", "call.first_token", "call.finished",
    ]  # fmt: skip
    assert [event.id for event in seen] == [1, 2, 3, 4, 5]
    routed = seen[2].data
    assert routed["mode"] == "scout" and routed["signature"].startswith(MODEL)
    async with running.client.events(after=3) as events:
        assert (await anext(events)).kind == "call.first_token"


async def test_events_end_when_the_tracker_stops() -> None:
    async with run_tracker() as running, running.client.events(after=0) as events:
        await running.client.register(claim(1, 0, 29))
        assert (await anext(events)).kind == "node.joined"
        await running.tracker.stop()
        async with asyncio.timeout(2):
            with contextlib.suppress(StopAsyncIteration):
                await anext(events)


async def test_metrics_are_prometheus_text(running: Running) -> None:
    await running.head(1)
    await running.client.ask(body())
    async with open_http() as http:
        response = await http.get(running.url + api.METRICS)
    assert response.headers["content-type"].startswith("text/plain")
    assert f'meshnet_calls_total{{mode="scout",model="{MODEL}",outcome="ok"}} 1.0' in response.text
    assert f'meshnet_nodes{{model="{MODEL}",state="ready"}} 1.0' in response.text


async def test_wrong_paths_and_methods_are_json(running: Running) -> None:
    async with open_http() as http:
        missing = await http.get(running.url + "/v2/nothing")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
        wrong = await http.put(running.url + api.NODES, json={})
        assert wrong.status_code == 405 and set(wrong.headers["allow"].split(",")) == {"GET", "POST"}
        for path in (api.CALLS + "?limit=x", api.CALLS + "?limit=0", api.EVENTS + "?after=x"):
            assert (await http.get(running.url + path)).status_code == 400


async def test_demand_is_counted_on_arrival_served_or_not(running: Running) -> None:
    await running.client.register(claim(1, 0, 14))
    for _ in range(3):
        with pytest.raises(NoRoute):
            await running.client.ask(body())
    with pytest.raises(NotFound):
        await running.client.ask(body(model="nope"))
    (model,) = (await running.client.stats()).models
    assert (model.model_key, model.rpm_last_hour, sum(model.minutes)) == (MODEL, 3 / 60, 3)
    assert model.combined_rpm_last_hour == model.rpm_last_hour and len(model.minutes) == 60


async def test_nodes_and_routes_say_how_they_are_reached(running: Running) -> None:
    wallet = claim(1, 0, 29).wallet
    await running.client.register(claim(1, 0, 29, f"relay://127.0.0.1:7091/{wallet}"))
    await running.client.register(claim(2, 0, 29))
    running.tracker.planner.why_blocked = lambda node: "" if node.is_relayed else "cannot be dialled: closed"
    said = {row.name: (row.relayed, row.unreachable) for row in (await running.client.nodes()).nodes}
    assert said == {"n1": (True, ""), "n2": (False, "cannot be dialled: closed")}
    (model,) = (await running.client.routing()).models
    assert [hop.relayed for row in model.candidates for hop in row.hops] == [True]
    assert [why for _, why in model.left_out] == ["cannot be dialled: closed"]
