"""Fetching a shard's files: only those, resumed, checked; from sources that lack, lie, break and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from meshnet.domain.errors import NotFound, Overloaded, Unreachable, WeightsError
from meshnet.domain.shards import Shard
from meshnet.weights.fetch import FileSource, Wanted, fetch_shard, open_model
from meshnet.weights.manifest import MANIFEST_NAME
from meshnet.weights.store import Store, StoredModel

PIECE = 64
"""Bytes: the tiny model's layers are a few hundred, so that each comes in pieces."""


class FolderSource:
    """Another machine's folder. ``cut_after``: the line breaks once after so many bytes of weights."""

    def __init__(self, folder: Path, url: str = "http://other:1", cut_after: int | None = None) -> None:
        self.folder, self.url, self.cut_after = folder, url, cut_after
        self.asked: list[tuple[str, int]] = []
        self.sent = 0

    async def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        self.asked.append((name, offset))
        if not (self.folder / name).is_file():
            raise NotFound(f"{name} is not held here.")
        data = (self.folder / name).read_bytes()[offset:]
        for at in range(0, len(data), PIECE):
            if self.cut_after is not None and self.sent >= self.cut_after:
                self.cut_after = None
                raise Unreachable(f"{self.url} broke the connection.", code="connection_lost")
            self.sent += len(data[at : at + PIECE])
            yield data[at : at + PIECE]

    async def small(self, model_key: str, name: str) -> bytes:
        return b"".join([piece async for piece in self.stream(model_key, name)])


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


async def bring(store: Store, model: StoredModel, shard: Shard, *sources: FileSource) -> int:
    return await fetch_shard(store, model, shard, sources, lambda count: None, round_wait_s=0.0)


def wanted(tiny: Store) -> Wanted:
    return Wanted("tiny", tiny.open("tiny").manifest.revision)


async def test_empty_store_gets_the_shard_and_nothing_else(tiny: Store, here: Store) -> None:
    source = FolderSource(tiny.path("tiny"))
    model = await open_model(here, wanted(tiny), [source])
    source.sent, heard = 0, []
    fetched = await fetch_shard(here, model, Shard(1, 1), [source], heard.append)
    here.open("tiny").verify(Shard(1, 1))
    assert [name for name, _ in source.asked if name.startswith(("layer", "head", "embed"))] == [
        "layer-00001.safetensors"
    ]
    assert fetched == source.sent == sum(heard) == tiny.open("tiny").shard_bytes(Shard(1, 1))
    assert not list(here.root.glob(".downloads-*"))
    assert await fetch_shard(here, model, Shard(1, 1), [source], heard.append) == 0


async def test_cut_at_half_is_resumed_by_the_next_process(tiny: Store, here: Store) -> None:
    size = (tiny.path("tiny") / "layer-00001.safetensors").stat().st_size
    whole = FolderSource(tiny.path("tiny"))
    model = await open_model(here, wanted(tiny), [whole])
    broken = FolderSource(tiny.path("tiny"), cut_after=size // 2)
    with pytest.raises(WeightsError, match=r"could not be fetched .*broke the connection|has it not.*Start again"):
        await bring(here, model, Shard(1, 1), OneTime(broken))
    assert model.missing(Shard(1, 1)), "half a file must not count as one"
    whole.asked.clear()
    whole.sent = 0
    await bring(here, model, Shard(1, 1), whole)
    assert whole.asked == [("layer-00001.safetensors", broken.sent)]
    assert 0 < whole.sent == size - broken.sent < size
    here.open("tiny").verify(Shard(1, 1))


class OneTime:
    """A source that is gone after its first break."""

    def __init__(self, source: FolderSource) -> None:
        self._source, self.url, self._gone = source, source.url, False

    async def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        if self._gone:
            raise NotFound("gone")
        try:
            async for piece in self._source.stream(model_key, name, offset):
                yield piece
        except Unreachable:
            self._gone = True
            raise

    async def small(self, model_key: str, name: str) -> bytes:
        return await self._source.small(model_key, name)


async def test_broken_line_goes_on_with_the_next_source(tiny: Store, here: Store) -> None:
    first = OneTime(FolderSource(tiny.path("tiny"), "http://first:1", cut_after=100))
    second = FolderSource(tiny.path("tiny"), "http://second:1")
    model = await open_model(here, wanted(tiny), [second])
    second.sent = 0
    await bring(here, model, Shard(2, 2), first, second)
    here.open("tiny").verify(Shard(2, 2))
    assert first._source.sent + second.sent == tiny.open("tiny").shard_bytes(Shard(2, 2))


async def test_liar_is_named_and_an_honest_source_heals(tiny: Store, here: Store, tmp_path: Path) -> None:
    lying = tmp_path / "lying"
    lying.mkdir()
    for file in tiny.path("tiny").iterdir():
        (lying / file.name).write_bytes(file.read_bytes())
    layer = lying / "layer-00001.safetensors"
    layer.write_bytes(bytes(len(layer.read_bytes())))
    model = await open_model(here, wanted(tiny), [FolderSource(lying)])
    with pytest.raises(WeightsError, match=r"http://liar:1 has another layer-00001.safetensors.*SHA-256"):
        await bring(here, model, Shard(1, 1), FolderSource(lying, "http://liar:1"))
    assert model.missing(Shard(1, 1))
    honest = FolderSource(tiny.path("tiny"))
    await bring(here, model, Shard(1, 1), FolderSource(lying), honest)
    here.open("tiny").verify(Shard(1, 1))


async def test_manifest_that_does_not_match_is_said(tiny: Store, here: Store) -> None:
    with pytest.raises(
        WeightsError, match=r"No machine gives the manifest of tiny .*http://other:1: its manifest is of"
    ):
        await open_model(here, Wanted("tiny", "0" * 16), [FolderSource(tiny.path("tiny"))])
    assert not here.path("tiny").exists()


async def test_other_weights_in_the_store_are_not_replaced(tiny: Store) -> None:
    with pytest.raises(WeightsError, match="meshnet models remove tiny") as caught:
        await open_model(tiny, Wanted("tiny", "0" * 16), [])
    assert caught.value.code == "other_revision"


async def test_config_that_is_not_the_manifests_stores_nothing(tiny: Store, here: Store) -> None:
    exact = wanted(tiny)
    (tiny.path("tiny") / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"config.json of http://other:1 is not what its manifest says"):
        await open_model(here, exact, [FolderSource(tiny.path("tiny"))])
    assert not here.path("tiny").exists()


async def test_forged_manifest_is_refused(tiny: Store, here: Store) -> None:
    file = tiny.path("tiny") / MANIFEST_NAME
    forged = json.loads(file.read_text())
    forged["files"][0]["name"] = "../../evil"
    file.write_text(json.dumps(forged))
    with pytest.raises(WeightsError, match="no file name of a model"):
        await open_model(here, Wanted("tiny"), [FolderSource(tiny.path("tiny"))])


async def test_nobody_has_it_says_what_each_said(tiny: Store, here: Store, tmp_path: Path) -> None:
    model = await open_model(here, wanted(tiny), [FolderSource(tiny.path("tiny"))])
    with pytest.raises(WeightsError, match="http://empty:1 has it not"):
        await bring(here, model, Shard(0, 0), FolderSource(tmp_path, "http://empty:1"))


async def test_full_disk_is_said_before_anything_comes(tiny: Store, here: Store) -> None:
    source = FolderSource(tiny.path("tiny"))
    model = await open_model(here, wanted(tiny), [source])
    source.sent = 0
    with pytest.raises(WeightsError, match="too small") as caught:
        await fetch_shard(here, model, Shard(0, 2), [source], lambda count: None, free=lambda folder: 1000)
    assert caught.value.code == "disk_full" and source.sent == 0


async def test_two_nodes_of_one_machine_fetch_each_file_once(tiny: Store, here: Store) -> None:
    source = FolderSource(tiny.path("tiny"))
    model = await open_model(here, wanted(tiny), [source])
    source.sent = 0
    await asyncio.gather(
        bring(here, model, Shard(0, 1), source),
        bring(here, model, Shard(1, 2), source),
    )
    here.open("tiny").verify()
    assert source.sent == tiny.open("tiny").shard_bytes(Shard(0, 2))


async def test_source_with_too_many_readers_is_waited_for(tiny: Store, here: Store) -> None:
    class Busy(FolderSource):
        refusals = 40

        async def stream(self, model_key: str, name: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
            if self.refusals and name.startswith("layer"):
                self.refusals -= 1
                raise Overloaded("16 downloads run here already.")
            async for piece in super().stream(model_key, name, offset):
                yield piece

    busy = Busy(tiny.path("tiny"))
    model = await open_model(here, wanted(tiny), [busy])
    await bring(here, model, Shard(1, 1), busy)
    assert busy.refusals == 0
    here.open("tiny").verify(Shard(1, 1))
