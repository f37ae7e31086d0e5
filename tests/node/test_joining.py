"""How a node comes to its layers, and what it says when it cannot."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemons.node.joining import DEFAULT_KV_BYTES, Joiner
from daemons.node.settings import NodeSettings
from meshnet.domain.budget import DEFAULT_WORKSPACE_BYTES
from meshnet.domain.errors import InvalidRequest, MeshnetError, NotFound, StartError, Unreachable
from meshnet.domain.nodes import HardwareProfile
from meshnet.domain.shards import Shard
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store
from meshnet.wire.demand import AssignmentRequest, AssignmentResponse

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "weights"))
from weights_testing import write_folder

AVAILABLE = 8_000_000_000


class ScriptedTracker:
    url = "http://tracker:1"

    def __init__(self, answer: AssignmentResponse | MeshnetError) -> None:
        self._answer = answer
        self.asked: list[AssignmentRequest] = []

    async def assign(self, request: AssignmentRequest) -> AssignmentResponse:
        self.asked.append(request)
        if isinstance(self._answer, MeshnetError):
            raise self._answer
        return self._answer


class FolderSource:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self.url = folder, url

    async def stream(self, model_key: str, name: str, offset: int = 0) -> Any:
        yield (await self.small(model_key, name))[offset:]

    async def small(self, model_key: str, name: str) -> bytes:
        path = self._folder / model_key / name
        if not path.is_file():
            raise NotFound(f"{name} is not held here.")
        return path.read_bytes()


@pytest.fixture
def mesh(tmp_path: Path) -> Store:
    """What the mesh has: the model ``tiny``."""
    store = Store(tmp_path / "mesh")
    target = store.path("tiny")
    target.mkdir(parents=True)
    split_folder(write_folder(tmp_path / "source"), target, "tiny", "folder", silent)
    return store


def given(mesh: Store, **fields: Any) -> AssignmentResponse:
    values: dict[str, Any] = {
        "model_key": "tiny",
        "revision": mesh.open("tiny").manifest.revision,
        "n_layers": 3,
        "shard_start": 1,
        "shard_end": 2,
        "price_per_token": 0.0,
        "why": "because",
        "reserved_for_s": 600.0,
        "kv_bytes": 12_345,
        "sources": ("http://tracker:1",),
    }
    return AssignmentResponse(**{**values, **fields})


def joiner(tmp_path: Path, mesh: Store, tracker: ScriptedTracker, **settings: Any) -> Joiner:
    return Joiner(
        NodeSettings(**settings),
        Store(tmp_path / "here"),
        "wallet12",
        tracker,
        lambda url: FolderSource(mesh.root, url),
        HardwareProfile(ram_available_bytes=AVAILABLE),
    )


async def test_assigned_work_is_what_the_tracker_says(tmp_path: Path, mesh: Store) -> None:
    tracker = ScriptedTracker(given(mesh))
    work = await joiner(tmp_path, mesh, tracker, memory="1GB", sessions=2, context=200, name="n1").find_work()
    (asked,) = tracker.asked
    assert (asked.memory_budget_bytes, asked.sessions, asked.context_tokens, asked.model_key) == (10**9, 2, 200, None)
    assert (work.shard, work.kv_budget_bytes, work.memory_budget_bytes) == (Shard(1, 2), 12_345, 10**9)
    assert work.model.missing(work.shard)[0].name == "head.safetensors"
    assert [source.url for source in work.sources] == ["http://tracker:1"]


@pytest.mark.parametrize(
    ("memory", "budget"), [("", int(AVAILABLE * 0.8)), ("100GB", AVAILABLE), ("2GiB", 2 << 30), ("500MB", 500_000_000)]
)
async def test_budget_is_never_more_than_is_available(tmp_path: Path, mesh: Store, memory: str, budget: int) -> None:
    tracker = ScriptedTracker(given(mesh))
    await joiner(tmp_path, mesh, tracker, memory=memory).find_work()
    assert tracker.asked[0].memory_budget_bytes == budget


async def test_silent_tracker_is_one_sentence_with_a_way_out(tmp_path: Path, mesh: Store) -> None:
    tracker = ScriptedTracker(Unreachable("tracker at http://tracker:1 is not reachable; start it with: meshnet up."))
    with pytest.raises(StartError, match=r"not reachable.*give --model and --shard yourself"):
        await joiner(tmp_path, mesh, tracker).find_work()


async def test_budget_that_holds_no_layer_is_said_as_the_tracker_says_it(tmp_path: Path, mesh: Store) -> None:
    tracker = ScriptedTracker(InvalidRequest("1 MB hold no layer: 9 MB more.", code="budget_too_small"))
    with pytest.raises(StartError, match="hold no layer: 9 MB more"):
        await joiner(tmp_path, mesh, tracker, memory="1MB").find_work()


async def test_given_layers_need_no_tracker_when_they_are_here(tmp_path: Path, mesh: Store) -> None:
    shutil.copytree(mesh.root, tmp_path / "here")
    tracker = ScriptedTracker(Unreachable("gone"))
    work = await joiner(tmp_path, mesh, tracker, model="tiny", shard="0-1").find_work()
    assert (work.shard, work.kv_budget_bytes, work.memory_budget_bytes) == (Shard(0, 1), DEFAULT_KV_BYTES, 0)
    assert not tracker.asked


async def test_given_layers_that_are_not_here_come_from_the_mesh(tmp_path: Path, mesh: Store) -> None:
    tickets: dict[str, str] = {}
    answer = given(mesh, sources=("http://tracker:1", "relay://r:7090/abc"), tickets={"abc": "leave for abc"})
    tracker = ScriptedTracker(answer)
    asking = joiner(tmp_path, mesh, tracker, model="tiny", shard="0-0")
    work = await replace(asking, keep_ticket=tickets.__setitem__).find_work()
    assert work.model.missing(Shard(0, 0))
    assert [source.url for source in work.sources] == ["http://tracker:1", "relay://r:7090/abc"]
    assert tickets == {"abc": "leave for abc"}
    (asked,) = tracker.asked
    assert (asked.model_key, asked.shard_start, asked.shard_end) == ("tiny", 0, 0)
    with pytest.raises(NotFound, match="nobody"):
        await joiner(tmp_path, mesh, ScriptedTracker(given(mesh)), model="nobody", shard="0-0").find_work()


async def test_given_layers_beyond_the_memory_say_what_is_short(tmp_path: Path, mesh: Store) -> None:
    shutil.copytree(mesh.root, tmp_path / "here")
    tracker = ScriptedTracker(given(mesh))
    with pytest.raises(StartError, match=r"Layers 0-2 of tiny need .* are short\. Give more --memory"):
        await joiner(tmp_path, mesh, tracker, model="tiny", shard="0-2", memory="500MB").find_work()
    fitting = await joiner(tmp_path, mesh, tracker, model="tiny", shard="0-2", memory="700MB", sessions=2).find_work()
    assert fitting.kv_budget_bytes == 2 * 64 * 3 * 32, "the model's whole context is 64 tokens"
    assert fitting.memory_budget_bytes == 700_000_000 > DEFAULT_WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"memory": "much"}, "--memory: 'much'"),
        ({"shard": "0-3"}, "which model"),
        ({"sessions": 0}, "at least one"),
        ({"context": 0}, "at least one"),
        ({"context": 100}, "128 tokens at least"),
        ({"model": "Bad Name"}, "--model"),
        ({"model": "m", "shard": "5-2"}, "5-2"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(StartError, match=said):
        NodeSettings(**settings).check()
