from __future__ import annotations

import msgspec

from tests.tui import canned
from tui.history import SPAN_S, History, share
from tui.model import changes, label_of, look, route_labels
from tui.problems import find_problems

replace = msgspec.structs.replace


def test_changes_is_silent_when_nothing_changed() -> None:
    assert changes(canned.mesh(), canned.mesh()) == []


def test_changes_says_what_there_is_at_first() -> None:
    said = changes(None, canned.mesh())
    assert "node a100-1 is ready, layers 0-31 of m-7b" in said
    assert "route a100-1: proven, prior 25.0, learned 44.1 tok/s" in said
    assert any(text.startswith("problem: m2-1 is suspect") for text in said)


def test_changes_names_joins_leaves_and_states() -> None:
    before = canned.mesh()
    loading, rest = before.nodes[5], before.nodes[1:5]
    after = replace(before, nodes=(*rest, replace(loading, state="ready"), canned.node("new-1", 0, 15)))
    said = changes(before, after)
    assert "node t4-1 went from loading to ready, layers 24-31 of m-7b" in said
    assert "node new-1 is ready, layers 0-15 of m-7b" in said
    assert "node a100-1 left, it held layers 0-31" in said


def test_changes_tells_a_route_that_went_stale_and_a_speed_that_moved() -> None:
    before = canned.mesh()
    assert before.routing is not None
    model = before.routing.models[0]
    first, second, *others = model.candidates
    moved = replace(first, learned_tps=30.0)
    stale = replace(second, status="stale")
    after = replace(
        before, routing=replace(before.routing, models=(replace(model, candidates=(moved, stale, *others)),))
    )
    said = changes(before, after)
    assert "route a100-1: 44.1 to 30.0 tok/s, expected share 55%" in said
    assert "route a100-1>4090-2: from proven to stale, 38.4 tok/s" in said


def test_changes_tells_how_a_call_ended_once() -> None:
    before = canned.mesh()
    ended = replace(before.calls[0], outcome="ok", completion_tokens=96, tps=44.2)
    after = replace(before, calls=(ended, *before.calls[1:]))
    assert changes(before, after) == ["call 9z000400: ok, exploit a100-1, 12 tokens in, 96 out, 44.2 tok/s"]


def test_a_solved_problem_is_said() -> None:
    before = canned.mesh()
    well = tuple(replace(node, suspect=False, heartbeat_age_s=1.0) for node in before.nodes)
    assert changes(before, replace(before, nodes=well)) == ["solved: m2-1 is suspect: no heartbeat for 12s"]


def test_labels_are_unique_where_names_are_not() -> None:
    snapshot = canned.mesh()
    twin = canned.candidate(
        (canned.hop("a100-1", 0, 20, (0, 31)), canned.hop("3090-1", 21, 31, (16, 31))), "proven", 9.0
    )
    assert snapshot.routing is not None
    model = snapshot.routing.models[0]
    more = replace(
        snapshot, routing=replace(snapshot.routing, models=(replace(model, candidates=(*model.candidates, twin)),))
    )
    labels = route_labels(more)
    assert labels[twin.signature] == "a100-1[0-20]>3090-1[21-31]"
    assert len(set(labels.values())) == len(labels)


def test_the_label_of_a_forgotten_route_is_its_signature() -> None:
    assert label_of(look(canned.empty()), "m | aaa.0-3[0-3] -> bbb.4-7[4-7]") == "aaa.0-3[0-3]>bbb.4-7[4-7]"


def test_problems_come_worst_first_with_the_place_to_look() -> None:
    snapshot = canned.mesh()
    cover = replace(snapshot.coverage[0], gaps=("7-9",))
    problems = find_problems(replace(snapshot, coverage=(cover,)))
    assert [(p.view, p.weight) for p in problems] == [("layers", 90), ("nodes", 70), ("calls", 50)]
    assert problems[0].text == "m-7b: layers 7-9 are held by no node, so it cannot answer"


def test_a_call_that_its_asker_got_wrong_is_no_problem_of_the_mesh_and_an_old_one_has_passed() -> None:
    failed = canned.call(400, "pinned", (canned.A,), "failed", error_code="node_failed", accepted_at=canned.NOON - 60)

    def problems(**more: object) -> list[str]:
        return [p.view for p in find_problems(replace(canned.empty(), calls=(replace(failed, **more),)))]

    assert problems() == ["calls"]
    assert problems(error_code=None) == ["calls"]
    for code in ("invalid_request", "bad_route", "context_length_exceeded", "not_found", "forbidden"):
        assert problems(error_code=code) == []
    assert problems(accepted_at=canned.NOON - 1000) == []


def test_an_empty_mesh_has_no_problem() -> None:
    assert find_problems(canned.empty()) == ()


def test_share_reuses_what_is_equal() -> None:
    before, after = canned.mesh(), replace(canned.mesh(), taken_at=1.0)
    shared = share(before, after)
    assert shared == after
    assert shared.nodes[0] is before.nodes[0]
    assert shared.calls[-1] is before.calls[-1]
    assert shared.routing is before.routing


def test_history_steps_back_and_returns_to_live() -> None:
    history = History()
    for i in range(5):
        history.add(float(i), replace(canned.empty(), taken_at=float(i)))
    assert history.is_live
    history.step(-2)
    assert history.shown is not None and history.shown[0] == 2.0
    assert len(history.until_shown()) == 3
    history.add(5.0, canned.empty())
    assert history.shown[0] == 2.0
    history.step(-99)
    assert history.shown[0] == 0.0
    history.step(99)
    assert history.is_live


def test_history_forgets_after_its_span_and_keeps_the_place() -> None:
    history = History()
    for i in range(4):
        history.add(i * 100.0, replace(canned.empty(), taken_at=float(i)))
    history.step(-1)
    history.add(SPAN_S + 150.0, canned.empty())
    assert len(history.everything()) == 3
    assert history.shown is not None and history.shown[0] == 200.0
