"""What status, nodes, coverage and routes print: at 80 columns, for whole and broken meshes, with hostile names."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from conftest import Machine
from fake_daemon import FakeMesh
from rich.console import Console, RenderableType

from meshnet.cli.__main__ import main
from meshnet.cli.coverage import cell_size, draw
from meshnet.cli.routes import render, render_explanation
from meshnet.cli.tables import nodes_table, notes_on
from meshnet.wire.messages import CoverageModel, NodeMessage
from meshnet.wire.routing import (
    CandidateMessage,
    DecisionMessage,
    ExplainResponse,
    RouteHop,
    RoutingConfigMessage,
    RoutingModel,
    RoutingResponse,
)

Mesh = tuple[str, FakeMesh]
Capsys = pytest.CaptureFixture[str]


def printed(what: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(what)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def node(name: str, start: int, end: int, n_layers: int = 30, **more: object) -> NodeMessage:
    fields = {
        "node_id": f"wallet{name}.{start}-{end}",
        "wallet": f"wallet{name}",
        "name": name,
        "url": "http://127.0.0.1:1",
        "model_key": "m",
        "revision": "00000000",
        "n_layers": n_layers,
        "shard_start": start,
        "shard_end": end,
        "dtype": "float32",
        "context_length": 8192,
        "epoch": 1,
        "state": "ready",
        "live": True,
        "suspect": False,
        "heartbeat_age_s": 1.0,
        "joined_age_s": 1.0,
        "benchmark_tokens_per_sec": 10.0,
    }
    return NodeMessage(**{**fields, **more})  # type: ignore[arg-type]


def covered(
    depths: tuple[int, ...], gaps: tuple[str, ...] = (), single: tuple[str, ...] = (), **more: object
) -> CoverageModel:
    return CoverageModel(
        model_key="m",
        n_layers=len(depths),
        depths=depths,
        gaps=gaps,
        single=single,
        coverage_deficit=depths.count(0) / len(depths),
        layers=(),
        **more,  # type: ignore[arg-type]
    )


def test_coverage_map_shows_a_cell_a_layer_and_gaps_in_words() -> None:
    model = covered((1, 1, 1, 2, 2, 0, 0, 0), gaps=("5-7",), single=("0-2",))
    lines = draw(model, [node("n1", 0, 4, 8), node("n2", 3, 4, 8, state="loading")], 80)
    assert [str(line) for line in lines] == [
        "m: 8 layers",
        "nodes per layer   11122000",
        "n1        0-4     #####...",
        "n2        3-4     ...oo...",
        "Held by no node: layers 5-7 (38% of the model). No request can be served.",
        "",
    ]
    assert any("red" in str(span.style) for span in lines[1].spans)


def test_coverage_map_says_whose_loss_would_hurt() -> None:
    model = covered((1, 1, 2), single=("0-1",), loss={"walletn1.0-2": "0-1"})
    words = str(draw(model, [node("n1", 0, 2, 3), node("n2", 2, 2, 3)], 80)[-2])
    assert words == "All layers are held; layers 0-1 by one node only. Missing without n1: 0-1."


@pytest.mark.parametrize(("n_layers", "per_cell"), [(30, 1), (62, 1), (63, 2), (126, 3), (4096, 67)])
def test_coverage_map_groups_layers_to_fit(n_layers: int, per_cell: int) -> None:
    assert cell_size(n_layers, 80) == per_cell
    depths = (1,) * (n_layers - 1) + (0,)
    lines = draw(covered(depths, gaps=(f"{n_layers - 1}",)), [node("n1", 0, n_layers - 2, n_layers)], 80)
    assert max(len(line) for line in lines[:3]) <= 80
    assert str(lines[1]).endswith("0"), "a group is as weak as its gap"


def test_status_shows_tracker_models_and_nodes(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["status", "--tracker", mesh[0]]) == 0
    out = capsys.readouterr().out
    assert f"tracker {mesh[0]}  version fake  up 1m15s" in out
    assert "all layers held" in out
    assert "n1    0-14   smollm2-135m  ready" in out
    mesh[1].nodes.pop()
    assert main(["status", "--tracker", mesh[0]]) == 0
    assert "layers 15-29 missing" in capsys.readouterr().out


def test_status_json_says_how_long_the_tracker_runs(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["status", "--json", "--tracker", mesh[0]]) == 0
    assert json.loads(capsys.readouterr().out)["trackers"][0]["uptime_s"] == 75.0


def test_status_json_without_tracker_is_still_json(capsys: Capsys) -> None:
    assert main(["status", "--json", "--tracker", "127.0.0.1:9"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["trackers"] == []
    assert "not reachable" in err


def test_names_of_nodes_cannot_move_the_cursor(mesh: Mesh, capsys: Capsys) -> None:
    mesh[1].nodes[0]["name"] = "\x1b[2J\x1b]0;x\x07\r\u202e"
    for command in ("status", "nodes", "coverage"):
        assert main([command, "--tracker", mesh[0]]) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\r", "\x07", "\u202e"} & set(out)
        assert "x1b" in out


def test_nodes_and_coverage_json_are_the_trackers_answers(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["nodes", "--json", "--tracker", mesh[0]]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["n1", "n2"]
    assert main(["coverage", "--json", "--tracker", mesh[0]]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["depths"] == [1] * 30


def test_empty_mesh_says_what_to_start(mesh: Mesh, capsys: Capsys) -> None:
    mesh[1].nodes.clear()
    for command in ("nodes", "coverage"):
        assert main([command, "--tracker", mesh[0]]) == 0
        assert "Start some with: meshnet up" in capsys.readouterr().out


def candidate(name: str, **more: object) -> CandidateMessage:
    hop = RouteHop(node_id=f"wallet{name}.0-29", name=name, start_layer=0, end_layer=29)
    fields = {"signature": f"m | wallet{name}.0-29[0-29]", "hops": (hop,), "status": "unsampled", "prior_tps": 6.2}
    return CandidateMessage(**{**fields, **more})  # type: ignore[arg-type]


def test_routes_table() -> None:
    config = RoutingConfigMessage(
        policy="adr", explore_share=0.3, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8
    )
    rows = (
        candidate("n1", status="proven", learned_tps=6.56, spread_tps=0.52, expected_share=0.7, samples=3, weight=2.5),
        candidate("n2", expected_share=0.3),
    )
    model = RoutingModel(model_key="m", topology_epoch=3, candidates=rows, left_out=(("n9", "it is loading"),))
    assert printed(render(RoutingResponse(config=config, models=(model,))), 100).splitlines() == [
        "m: policy adr, explore 0.3, alpha 1, half-life 600 s, min tokens 8, topology epoch 3",
        "route     status     tok/s    ±  coef  share  calls  weight  prior",
        "n1[0-29]  proven       6.6  0.5     -    70%      3     2.5    6.2",
        "n2[0-29]  unsampled      -    -     -    30%      0     0.0    6.2",
        "left out: n9: it is loading",
    ]


def test_relayed_hops_say_so_in_routes_and_explanations() -> None:
    config = RoutingConfigMessage(
        policy="adr", explore_share=0.3, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8
    )
    hops = (
        RouteHop(node_id="walletn1.0-14", name="n1", start_layer=0, end_layer=14),
        RouteHop(node_id="walletn2.15-29", name="n2", start_layer=15, end_layer=29, relayed=True),
    )
    row = candidate("n1", signature="m | walletn1.0-14[0-14] -> walletn2.15-29[15-29]", hops=hops)
    model = RoutingModel(model_key="m", topology_epoch=3, candidates=(row,))
    assert "n1[0-14] -> n2[15-29] relayed  unsampled" in printed(
        render(RoutingResponse(config=config, models=(model,))), 100
    )
    decision = DecisionMessage(
        signature=row.signature, mode="exploit", policy="adr", why="it is the best", scores={row.signature: 6.0}
    )
    explained = ExplainResponse(model_key="m", topology_epoch=3, decision=decision, candidates=(row,))
    assert "n1[0-14] -> n2[15-29] relayed" in printed(render_explanation(explained), 100)


def test_nodes_say_how_they_are_reached_where_some_are_not_directly() -> None:
    direct, relayed = node("n1", 0, 14), node("n2", 15, 29, relayed=True)
    lost = node("n3", 0, 29, unreachable="cannot be dialled: closed")
    assert "way" not in printed(nodes_table([direct])), "where all are alike there is room for other things"
    lines = printed(nodes_table([direct, relayed, lost])).splitlines()
    assert lines[0].split()[:5] == ["node", "shard", "model", "state", "way"]
    assert [line.split()[4] for line in lines[1:]] == ["direct", "relayed", "none"]
    assert [note.plain for note in notes_on([direct, relayed, lost])] == ["n3 gets no calls: cannot be dialled: closed"]


def test_nodes_left_out_of_routes_go_by_their_names() -> None:
    config = RoutingConfigMessage(
        policy="adr", explore_share=0.3, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8
    )
    model = RoutingModel(model_key="m", topology_epoch=3, candidates=(), left_out=(("walletn9.0-14", "it is loading"),))
    text = printed(render(RoutingResponse(config=config, models=(model,)), {"walletn9.0-14": "n9"}), 100)
    assert text.splitlines()[-1] == "left out: n9: it is loading"


def test_routes_table_marks_arms_that_are_no_candidates() -> None:
    config = RoutingConfigMessage(
        policy="adr", explore_share=0.3, weight_alpha=1.0, stats_half_life_s=600.0, min_sample_tokens=8
    )
    rows = (candidate("n1", expected_share=1.0), candidate("n2", status="stale", learned_tps=4.0, current=False))
    model = RoutingModel(model_key="m", topology_epoch=3, candidates=rows)
    lines = printed(render(RoutingResponse(config=config, models=(model,))), 100).splitlines()
    assert lines[3].startswith("n2[0-29]  stale*")
    assert lines[4] == "* measured, but no candidate now: it was pinned, or the mesh was another"


def test_explanation_says_why() -> None:
    rows = (candidate("n1"), candidate("n2"))
    first, second = (row.signature for row in rows)
    decision = DecisionMessage(
        mode="scout",
        signature=first,
        why="no route is proven yet",
        policy="adr",
        scores={first: 8.7, second: 6.2},
        probabilities={first: 1.0},
    )
    answer = ExplainResponse(model_key="m", topology_epoch=1, decision=decision, candidates=rows)
    assert printed(render_explanation(answer)).splitlines() == [
        "m, topology epoch 1",
        "scout by adr: n1[0-29]",
        "because no route is proven yet",
        "  n1[0-29]                                 100%  score 8.7",
        "  n2[0-29]                                 score 6.2",
    ]


@pytest.mark.parametrize("command", ["status", "routes"])
def test_watch_in_a_pipe_shows_each_look_and_ends_with_its_reader(machine: Machine, mesh: Mesh, command: str) -> None:
    words = [sys.executable, "-m", "meshnet.cli", command, "--watch", "--tracker", mesh[0]]
    watching = subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watching.stdout is not None and watching.stderr is not None
    try:
        assert watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(20) == 0
        assert watching.stderr.read() == b""
    finally:
        watching.kill()
        watching.stderr.close()


@pytest.mark.parametrize("sick", [{"suspect": True}, {"health": "ejected"}])
def test_layers_that_only_silent_nodes_hold_are_not_called_held(
    sick: dict[str, object], mesh: Mesh, capsys: Capsys
) -> None:
    lines = draw(covered((1, 1, 1, 1)), [node("n1", 0, 1, 4), node("n2", 2, 3, 4, **sick)], 80)
    assert str(lines[3]).startswith("n2        2-3     ..~~  ")
    assert str(lines[-2]) == "Held, but only by nodes that do not answer: layers 2-3."
    mesh[1].nodes[1] |= sick
    assert main(["status", "--tracker", mesh[0]]) == 0
    said = capsys.readouterr().out
    assert "held, but only by nodes that do not answer: 15-29" in said
    assert "1 of 2" in said


def test_second_holder_that_is_silent_is_none() -> None:
    nodes = [node("n1", 0, 1, 4), node("n2", 2, 3, 4, suspect=True), node("n3", 0, 3, 4)]
    lines = draw(covered((2, 2, 2, 2)), nodes, 80)
    assert str(lines[1]) == "nodes per layer   2211"
    assert str(lines[-2]) == "All layers are held; layers 2-3 by one node only that answers."


def test_gap_does_not_hide_what_is_held_in_silence() -> None:
    lines = draw(covered((0, 1, 1, 1), ("0",)), [node("n1", 1, 2, 4), node("n2", 3, 3, 4, suspect=True)], 120)
    assert "Held by no node: layers 0 (25% of the model)" in str(lines[-2])
    assert "Held, but only by nodes that do not answer: layers 3." in str(lines[-2])
