"""Joining machines get the layers that help: one after another, all at once, by demand, by what they can hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from daemons.kit.files import FileServer
from daemons.kit.signing import RequestSigner
from daemons.kit.web import make_app, serve
from daemons.tracker.assignments import FORGIVE_S, LEARN_AT_ONCE, Assignments
from daemons.tracker.fleet import Fleet
from daemons.tracker.rebalancing import ADVICE_S
from meshnet.client.files import FilesClient
from meshnet.client.http import Credentials, open_http
from meshnet.domain.budget import DEFAULT_WORKSPACE_BYTES, Promise, memory_need
from meshnet.domain.demand import DemandStats
from meshnet.domain.errors import InvalidRequest, NotFound
from meshnet.domain.ids import wallet_of
from meshnet.domain.shards import Shard
from meshnet.weights.cost import model_cost
from meshnet.weights.manifest import FileEntry, Manifest, encode_manifest, revision_of
from meshnet.weights.store import Store
from meshnet.wire import api
from meshnet.wire.demand import AssignmentRequest, AssignmentResponse
from meshnet.wire.messages import HeartbeatRequest
from tests.tracker.running import MODEL, Running, claim, node_id_of, private_key, public_key, run_tracker

LAYERS = 30
CONFIG = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
PROMISE = Promise(256, 8)


def write_model(store: Store, model_key: str = MODEL, layer_bytes: int = 14_161_400) -> Manifest:
    """Looks as large as the real one and takes no room: its files are holes."""
    folder = store.path(model_key)
    folder.mkdir(parents=True)
    sizes = {"embedding.safetensors": 113_246_344, "head.safetensors": 2424}
    sizes |= {f"layer-{n:05}.safetensors": layer_bytes for n in range(LAYERS)}
    kinds = {"embedding.safetensors": "embedding", "head.safetensors": "head", "config.json": "config"}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, size in sizes.items():
        with (folder / name).open("wb") as file:
            file.truncate(size)
    sizes["config.json"] = (folder / "config.json").stat().st_size
    files = tuple(
        FileEntry(
            name,
            size,
            f"{abs(hash(model_key)) % 10}" * 64,
            kinds.get(name, "layer"),  # type: ignore[arg-type]
            int(name[6:11]) if name.startswith("layer") else None,
        )
        for name, size in sorted(sizes.items())
    )
    manifest = Manifest(
        format=1,
        model_key=model_key,
        revision=revision_of(files),
        source="test",
        architecture="LlamaForCausalLM",
        model_type="llama",
        n_layers=LAYERS,
        hidden_size=576,
        vocab_size=49152,
        context_length=8192,
        dtype="float32",
        tied_embeddings=True,
        files=files,
        has_chat_template=True,
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return manifest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
async def offering(store: Store) -> AsyncIterator[Running]:
    write_model(store)
    async with run_tracker(store=store) as running:
        yield running


def budget(store: Store, layers: int) -> int:
    """Memory for so many layers wherever they lie, ends included."""
    model = store.open(MODEL)
    cost = model_cost(model.manifest, model.config, "float32")
    middle = memory_need(cost, Shard(5, 4 + min(layers, 20)), PROMISE).total_bytes - DEFAULT_WORKSPACE_BYTES
    ends = cost.embedding_bytes + cost.final_bytes
    return DEFAULT_WORKSPACE_BYTES + middle * layers // min(layers, 20) + ends


def wallet(number: int) -> str:
    return wallet_of(bytes.fromhex(public_key(number)))


async def ask(running: Running, number: int, memory: int, **fields: Any) -> AssignmentResponse:
    request = AssignmentRequest(
        wallet=wallet(number),
        name=f"n{number}",
        memory_budget_bytes=memory,
        sessions=PROMISE.sessions,
        context_tokens=PROMISE.context_tokens,
        **fields,
    )
    return await running.client.assign(request)


async def come_up(running: Running, number: int, given: AssignmentResponse, **fields: Any) -> None:
    values = {"revision": given.revision, "model_key": given.model_key, **fields}
    await running.client.register(claim(number, given.shard_start, given.shard_end, **values))


def span(given: AssignmentResponse) -> range:
    return range(given.shard_start, given.shard_end + 1)


def gaps(given: list[AssignmentResponse]) -> set[int]:
    return set(range(LAYERS)) - {layer for one in given for layer in span(one)}


BUDGETS = (3, 5, 7, 10, 30)


@pytest.mark.parametrize("order", [BUDGETS, BUDGETS[::-1], (10, 3, 30, 5, 7)])
async def test_five_that_join_one_after_another_leave_no_gap(
    offering: Running, store: Store, order: tuple[int, ...]
) -> None:
    given = []
    for number, layers in enumerate(order, 1):
        open_before = gaps(given)
        one = await ask(offering, number, budget(store, layers))
        assert not open_before or open_before & set(span(one)), "it closes open layers while there are any"
        assert len(span(one)) >= min(layers, LAYERS - 1)
        given.append(one)
        await come_up(offering, number, one)
        if sum(order[:number]) >= LAYERS + number:
            assert not gaps(given), given
    assert not gaps(given)


async def test_five_that_join_at_once_get_different_windows(offering: Running, store: Store) -> None:
    await ask(offering, 9, budget(store, 3))  # Who signs knows the tracker by now.
    offering.tracker.supply.assignments.reservations.release(wallet(9))
    given = await asyncio.gather(*(ask(offering, n, budget(store, size)) for n, size in enumerate(BUDGETS, 1)))
    assert not gaps(list(given))
    small = [span(one) for one in given[:4]]
    assert len({(one.start, one.stop) for one in small}) == 4
    for one in small:
        others = {layer for other in small if other is not one for layer in other}
        assert set(one) - others, f"{one} helps nowhere: {small}"


async def test_reservation_goes_with_the_lease_and_a_second_question_replaces_it(
    offering: Running, store: Store
) -> None:
    first = await ask(offering, 1, budget(store, 10))
    again = await ask(offering, 1, budget(store, 10))
    assert span(first) == span(again), "its own reservation is not in its way"
    reservations = offering.tracker.supply.assignments.reservations
    assert len(reservations.live(time.monotonic())) == 1
    await come_up(offering, 1, again, state="loading")
    assert not reservations.live(time.monotonic())
    other = await ask(offering, 2, budget(store, 10))
    assert not set(span(other)) & set(span(again))
    assert (
        other.price_per_token == 0.0
        and "open layers" in other.why
        and other.sources
        == (
            offering.url,
            "http://127.0.0.1:9",
        )
    )


async def test_demand_decides_between_models(offering: Running, store: Store) -> None:
    write_model(store, "asked-for")
    for number in range(60 * 10):
        offering.tracker.demand.record("asked-for", f"call-{number}", time.time())
    given = await ask(offering, 1, budget(store, 5))
    assert given.model_key == "asked-for"
    assert (given.demand_rpm, given.coverage_deficit) == (pytest.approx(10.0), 1.0)
    assert given.score == pytest.approx(11.0 * 1.01)
    pinned = await ask(offering, 1, budget(store, 5), model_key=MODEL)
    assert pinned.model_key == MODEL and pinned.score == pytest.approx(1.01)


async def test_requests_for_a_stored_model_that_nobody_holds_count(offering: Running) -> None:
    for model in (MODEL, "made-up"):
        with pytest.raises(NotFound):
            await offering.client.ask({"model": model, "messages": [{"role": "user", "content": "hi"}]})
    (counted,) = (await offering.client.stats()).models
    assert counted.model_key == MODEL and counted.rpm_last_hour * 60 == pytest.approx(1)


async def test_owner_who_names_the_layers_is_told_where_they_are(offering: Running, store: Store) -> None:
    first = await ask(offering, 1, budget(store, 30))
    await come_up(offering, 1, first)
    named = await ask(offering, 2, 0, model_key=MODEL, shard_start=3, shard_end=8)
    assert (named.shard_start, named.shard_end, named.sources) == (3, 8, (offering.client.url, "http://127.0.0.1:9"))
    for wrong in ({"shard_start": 3}, {"shard_start": 8, "shard_end": 3, "model_key": MODEL}, {"shard_end": 30}):
        with pytest.raises(InvalidRequest):
            await ask(offering, 3, 0, **wrong)


async def test_too_small_says_how_much_is_short(offering: Running) -> None:
    with pytest.raises(InvalidRequest, match="more --memory") as caught:
        await ask(offering, 1, 400_000_000)
    assert caught.value.code == "budget_too_small" and "MB more" in caught.value.message
    assert not offering.tracker.supply.assignments.reservations.live(time.monotonic())


async def test_unknown_model_and_empty_tracker_say_so(offering: Running, running: Running) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await ask(offering, 1, 10**10, model_key="nobody")
    with pytest.raises(NotFound, match="meshnet models"):
        await ask(running, 1, 10**10)


@contextlib.asynccontextmanager
async def node_with_files(store: Store) -> AsyncIterator[str]:
    files = FileServer(store, time.monotonic)
    site = await serve(make_app([web.get(api.MODEL_FILE, files.serve, allow_head=False)], 1000), "127.0.0.1", 0)
    try:
        yield site.url
    finally:
        await site.close()


async def test_model_that_only_a_node_has_is_learned_from_it(running: Running, store: Store) -> None:
    manifest = write_model(store)
    async with node_with_files(store) as url:
        await running.client.register(claim(1, 0, 14, url, revision=manifest.revision))
        given = await ask(running, 2, budget(store, 15))
    assert given.revision == manifest.revision and given.sources == (url,)
    assert set(span(given)) >= set(range(16, LAYERS)), "what the node holds is held"


async def test_partial_or_other_weights_are_not_offered(offering: Running, store: Store) -> None:
    (store.path(MODEL) / "layer-00003.safetensors").unlink()
    with pytest.raises(NotFound):
        await ask(offering, 1, 10**10)


async def test_node_that_follows_advice_is_told_once_its_layers_are_held_twice(offering: Running, store: Store) -> None:
    revision = store.open(MODEL).manifest.revision
    fields = {"revision": revision, "memory_budget_bytes": 3_000_000_000, "kv_budget_bytes": 10**8}
    await offering.client.register(claim(1, 0, 14, **fields))
    await offering.client.register(claim(2, 0, 14, **fields, rebalance=True))
    balance = offering.tracker.supply.rebalancing
    balance.tick()
    told = {n: await offering.client.heartbeat(node_id_of(n, 0, 14), HeartbeatRequest(epoch=1)) for n in (1, 2)}
    assert told[1].advice is None
    advice = told[2].advice
    assert advice is not None and (advice.shard_start, advice.shard_end) == (15, 29) and "closes 15" in advice.why
    await offering.client.heartbeat(node_id_of(2, 0, 14), HeartbeatRequest(epoch=1, state="draining"))
    other = await ask(offering, 3, budget(store, 10))
    assert other.coverage_deficit == 0.0, "where it goes is reserved"
    await offering.client.register(claim(2, 15, 29, **fields, rebalance=True))
    balance.tick()
    assert balance.advice_for(node_id_of(2, 15, 29)) is None
    assert any(event.kind == "node.advised" for event in offering.tracker.events.after(0))


async def test_nobody_is_told_who_does_not_follow_or_lacks_the_memory(offering: Running, store: Store) -> None:
    revision = store.open(MODEL).manifest.revision
    await offering.client.register(claim(1, 0, 14, revision=revision))
    await offering.client.register(claim(2, 0, 14, revision=revision, rebalance=True, memory_budget_bytes=10**8))
    offering.tracker.supply.rebalancing.tick()
    assert [offering.tracker.supply.rebalancing.advice_for(node_id_of(n, 0, 14)) for n in (1, 2)] == [None, None]
    assert ADVICE_S > 0


async def test_files_are_served_by_the_tracker(offering: Running, store: Store) -> None:
    signer = RequestSigner(private_key(1), time.time, lambda: secrets.token_hex(16))
    async with open_http() as http:
        client = FilesClient(http, offering.url, Credentials(signer=signer))
        manifest = json.loads(await client.small(MODEL, "manifest.json"))
    assert manifest["revision"] == store.open(MODEL).manifest.revision


class Liars:
    """Strangers that serve ``manifest`` with a config of these bytes, over a clock that the test turns."""

    def __init__(self, store: Store, manifest: Manifest, config: bytes) -> None:
        self.manifest, self.config = manifest, config
        self.time, self.asked, self.at_once, self.most_at_once = 0.0, [], 0, 0
        self.fleet = Fleet(lambda: self.time)
        demand = DemandStats("t", 1, "")
        self.assignments = Assignments(
            self.fleet, demand, store, lambda: self.time, lambda: 1e9, lambda: "http://192.0.2.1:1", self.dial
        )

    def dial(self, url: str) -> Liars:
        self.asked.append(url)
        return self

    async def small(self, model_key: str, name: str) -> bytes:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(3):  # As long as the others need to ask, too.
            await asyncio.sleep(0)
        self.at_once -= 1
        return encode_manifest(self.manifest) if name == "manifest.json" else self.config

    def join(self, number: int, revision: str) -> str:
        lease = self.fleet.register(
            claim(number, 0, 29, f"http://198.51.100.{number}:7", model_key="other", revision=revision)
        )
        return lease.node.node_id

    async def assign(self) -> AssignmentResponse:
        return await self.assignments.assign(
            AssignmentRequest(wallet=wallet(30), name="n", memory_budget_bytes=4 << 30, model_key=MODEL)
        )


NONSENSE = {
    "nested without end": b"[" * 200_000,
    "more than a config": b" " * (1 << 19),
    "no JSON": b"\xff",
    "not a table": b"[]",
    "a number too long to read": b'{"num_attention_heads":' + b"9" * 5000 + b"}",
    "endless": b'{"num_attention_heads": 9, "head_dim": Infinity}',
    "text for a number": b'{"num_attention_heads": 9, "num_key_value_heads": "x"}',
    "below zero": b'{"num_attention_heads": 9, "num_key_value_heads": -5}',
    "beyond any machine": b'{"num_attention_heads": 9, "head_dim": 1' + b"0" * 400 + b"}",
    "lists for kinds": b'{"num_attention_heads": "9", "layer_types": [' + b"[]," * 29 + b"[]]}",
}


@pytest.mark.parametrize("config", NONSENSE.values(), ids=NONSENSE)
async def test_node_that_serves_nonsense_stops_nobodys_assignment(store: Store, tmp_path: Path, config: bytes) -> None:
    write_model(store)
    other = write_model(Store(tmp_path / "other"), "other")
    liars = Liars(store, other, config)
    node_id = liars.join(1, other.revision)
    for _ in range(2):
        assert (await liars.assign()).model_key == MODEL
    assert len(liars.asked) == 1, "it is not asked again at once"
    assert {offer.manifest.model_key for offer in await liars.assignments.offers()} == {MODEL}
    liars.time += FORGIVE_S + 1
    liars.config = json.dumps(CONFIG).encode()
    assert {offer.manifest.model_key for offer in await liars.assignments.offers()} == {MODEL, "other"}
    liars.fleet.leave(node_id)
    await liars.assignments.offers()
    liars.join(1, other.revision)
    await liars.assignments.offers()
    assert len(liars.asked) == 3, "what nobody has any more is not kept"


async def test_strangers_are_asked_together_and_each_once(store: Store, tmp_path: Path) -> None:
    write_model(store)
    liars = Liars(store, write_model(Store(tmp_path / "other"), "other"), b"{}")
    for number in range(1, 2 * LEARN_AT_ONCE + 1):
        liars.join(number, f"{number:016x}")
    await asyncio.gather(liars.assign(), liars.assign(), liars.assign())
    assert (len(set(liars.asked)), len(liars.asked)) == (2 * LEARN_AT_ONCE, 2 * LEARN_AT_ONCE)
    assert liars.most_at_once == LEARN_AT_ONCE
