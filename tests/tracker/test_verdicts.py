"""What routing learns of an attempt's end."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from daemons.tracker.attempts import Ended, EndKind
from daemons.tracker.calls import Call, Try
from daemons.tracker.fleet import Fleet
from daemons.tracker.planner import Planner
from daemons.tracker.verdicts import outcome_of
from meshnet.domain.ids import CallId
from meshnet.domain.routing import HopTiming, RoutingConfig
from meshnet.wire.messages import Delta, Finished
from meshnet.wire.openai import parse_chat_request
from tests.tracker.running import MODEL, body, claim, node_id_of
from tests.tracker.test_fleet import ManualClock

FINISHED = Finished(session=1, attempt=1, finish_reason="stop", prompt_tokens=2, completion_tokens=3)
HEAD, TAIL = node_id_of(1, 0, 14), node_id_of(2, 15, 29)


@pytest.fixture
def call() -> Call:
    """A call whose one attempt began at 100 s and has had three deltas by 103 s."""
    clock = ManualClock()
    fleet = Fleet(clock)
    planner = Planner(fleet, RoutingConfig(), Random(1), clock)
    fleet.register(claim(1, 0, 14, benchmark_tokens_per_sec=20.0))
    fleet.register(claim(2, 15, 29, benchmark_tokens_per_sec=10.0))
    call = Call(1, CallId("c"), parse_chat_request(msgspec.json.encode(body())), 1, 0.0, 100.0)
    with planner.reserve(planner.plan(MODEL)):
        call.tries.append(Try(1, planner.plan(MODEL), 100.0))
    for index, hop_us in enumerate([((1, 900_000), (1, 900_000)), ((5, 1000), (7, 2000)), ((5, 1000), (7, 2000))]):
        delta = Delta(session=1, attempt=1, text="a", token_ids=(index,), prompt_token_ids=(1, 2), hop_us=hop_us)
        call.add(delta, 101.0 + index)
    return call


def ended(call: Call, kind: EndKind, **fields: str) -> Try:
    attempt = call.tries[-1]
    finished = FINISHED if kind == "finished" else None
    attempt.ended, attempt.ended_at = Ended(kind, finished=finished, **fields), 110.0  # type: ignore[arg-type]
    return attempt


def test_a_whole_answer_is_a_sample_with_its_loads_and_claims(call: Call) -> None:
    outcome = outcome_of(call, ended(call, "finished"))
    assert (outcome.status, outcome.completion_tokens, outcome.prompt_tokens) == ("ok", 3, 2)
    assert (outcome.duration_s, outcome.ttft_s, outcome.decode_s) == (3.0, 1.0, 2.0)
    assert outcome.loads == (1, 1) and outcome.claimed_layer_s == pytest.approx((1 / 300, 1 / 150))
    assert outcome.hop_timings == (HopTiming(HEAD, 2, 0.002, 10e-6), HopTiming(TAIL, 2, 0.004, 14e-6))


@pytest.mark.parametrize("kind", ["client", "refused", "gone", "deadline"])
def test_what_is_no_fault_of_a_node_counts_against_none(call: Call, kind: EndKind) -> None:
    outcome = outcome_of(call, ended(call, kind, culprit=HEAD))
    assert (outcome.status, outcome.failed_node) == ("cancelled", None)


def test_a_failure_names_its_node_if_that_stands_on_the_route(call: Call) -> None:
    assert outcome_of(call, ended(call, "failed", culprit=TAIL)).failed_node == TAIL
    assert outcome_of(call, ended(call, "failed", culprit="stranger.0-29")).failed_node is None


def test_a_cancel_is_no_sample_and_the_rest_of_a_broken_answer_neither(call: Call) -> None:
    assert outcome_of(call, call.tries[-1]).status == "cancelled"
    attempt = ended(call, "finished")
    attempt.number = 2
    assert outcome_of(call, attempt).status == "rerouted"
