"""``meshnet.toml`` and the demo mesh: what is taken, what is refused and how."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from daemons.node.settings import NodeSettings
from daemons.relay.settings import RelayConfig
from daemons.tracker.settings import TrackerConfig
from meshnet.cli import meshfile
from meshnet.cli.bringup import share_threads
from meshnet.cli.meshfile import build_mesh, demo_mesh, find_mesh, read_mesh
from meshnet.domain.errors import StartError

EXAMPLE = Path(__file__).parents[2] / "docs/meshnet.toml.example"


def test_demo_mesh_has_overlapping_shards() -> None:
    mesh = demo_mesh()
    assert [(node["name"], node["shard"]) for node in mesh.nodes] == [("n1", "0-14"), ("n2", "15-29"), ("n3", "0-29")]
    assert mesh.models == ("smollm2-135m",)


def test_example_is_the_demo_mesh() -> None:
    example = read_mesh(EXAMPLE)
    assert (example.tracker, example.nodes) == (demo_mesh().tracker, demo_mesh().nodes)


def test_commented_keys_of_the_example_exist() -> None:
    lines = EXAMPLE.read_text().splitlines()
    document = tomllib.loads(
        "\n".join(line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines)
    )
    # The only two that cannot stand together.
    del document["mesh"]["tracker"]
    assert "kv_budget" in document["node"][0] and "route_policy" in document["tracker"]
    assert build_mesh(document, "example").relay is not None


def test_missing_file_means_demo_mesh_and_present_one_is_read(tmp_path: Path) -> None:
    assert find_mesh(None, tmp_path) == demo_mesh()
    (tmp_path / "meshnet.toml").write_text('[[node]]\nshard = "0-3"\n')
    mesh = find_mesh(None, tmp_path)
    assert mesh.tracker == {"name": "tracker"}
    assert mesh.nodes == ({"name": "n1", "model": "smollm2-135m", "shard": "0-3"},)


def test_a_relay_is_started_where_the_file_has_one() -> None:
    mesh = build_mesh({"relay": {"port": 0, "max_nodes": 3}}, "x.toml")
    assert mesh.relay == {"name": "relay", "port": 0, "max_nodes": 3}
    assert demo_mesh().relay is None and build_mesh({"mesh": {}}, "x.toml").relay is None


def test_remote_tracker_is_joined_and_none_is_started() -> None:
    mesh = build_mesh({"mesh": {"tracker": "http://10.0.0.5:7070"}, "node": [{"shard": "0-3"}]}, "x.toml")
    assert mesh.tracker is None
    assert mesh.tracker_url == "http://10.0.0.5:7070"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mesh\n", "line 1"),
        ("[tracker]\nport = \n", "line 2"),
        ("[meshes]\n", "has no table 'meshes'. Did you mean 'mesh'?"),
        ("[tracker]\nprot = 1\n", "[tracker] has no setting 'prot'. Did you mean 'port'?"),
        ('[[node]]\nname = "a"\nshards = "0-1"\n', "[[node]] a has no setting 'shards'. Did you mean 'shard'?"),
        ('[[node]]\nshard = "14-0"\n', "layers 14-0 are no range"),
        ('[[node]]\nshard = "all"\n', "'all' is not a layer range"),
        ("[[node]]\nshard = 3\n", "shard is 3; it must be a string"),
        ("[[node]]\nthreads = 0\n", "threads is 0; it must be a number from 1"),
        ("[tracker]\nport = 70000\n", "port is 70000; it must be 0 (a free one) to 65535"),
        ("[tracker]\nport = true\n", "port is True"),
        ("[relay]\nmax_node = 3\n", "[relay] has no setting 'max_node'. Did you mean 'max_nodes'?"),
        ("[relay]\nsplice_port = 70000\n", "splice_port is 70000"),
        ('[relay]\nname = "a"\n[[node]]\nname = "a"\n', "two daemons are named 'a'"),
        ('[[node]]\nname = "a"\n[[node]]\nname = "a"\n', "two daemons are named 'a'"),
        ('[[node]]\nname = "../x"\n', "'../x' cannot name a daemon"),
        ('[node]\nname = "a"\n', "nodes are written as [[node]]"),
        ('[mesh]\nmodel = "No Such"\n', "model is 'No Such'"),
        ('[mesh]\ntracker = "http://x:1"\n[tracker]\n', "not both"),
    ],
)
def test_bad_file_names_itself_and_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    with pytest.raises(StartError) as caught:
        read_mesh(path)
    assert words in caught.value.message
    assert "lab.toml" in caught.value.message or "'../x'" in caught.value.message


def test_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"Cannot read .*: No such file"):
        read_mesh(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match="not valid TOML"):
        read_mesh(tmp_path / "binary.toml")


def test_keys_are_those_of_the_daemons() -> None:
    tracker = {field.name for field in dataclasses.fields(TrackerConfig)}
    assert {field.name for field in dataclasses.fields(RelayConfig)} == set(meshfile.RELAY_KEYS)
    node = {field.name for field in dataclasses.fields(NodeSettings)}
    assert tracker <= set(meshfile.TRACKER_KEYS)
    assert node <= set(meshfile.NODE_KEYS)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 2), (16, 5)])
def test_nodes_share_the_cores(cores: int, threads: int) -> None:
    assert [node["threads"] for node in share_threads(demo_mesh().nodes, cores)] == [threads] * 3
    assert share_threads([{"threads": 7}], 2) == [{"threads": 7}]


def test_file_that_is_none_starts_no_demo_mesh(tmp_path: Path) -> None:
    path = tmp_path / "meshnet.toml"
    path.mkdir()
    with pytest.raises(StartError, match=r"Cannot read .*meshnet\.toml: Is a directory"):
        find_mesh(None, tmp_path)
    path.rmdir()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StartError, match="it is a link to nothing"):
        find_mesh(None, tmp_path)
    path.unlink()
    path.touch()
    with pytest.raises(StartError, match="is empty"):
        find_mesh(None, tmp_path)
