from __future__ import annotations

import pytest
import torch
from engine_testing import GREEDY, KV_BUDGET_BYTES, Ring, engine_of, store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.chat import Sampling
from meshnet.domain.engine import ITEMSIZE, Rows, SessionPlan, StepItem, StepResult
from meshnet.domain.errors import InvalidRequest, MeshnetError, Overloaded
from meshnet.domain.shards import Shard
from meshnet.engine.kv import BLOCK_TOKENS
from meshnet.engine.shard import load_shard
from meshnet.engine.steps import PackedEngine
from meshnet.weights.store import Store

LAYERS, HIDDEN = 3, 32
TOKEN_BYTES = LAYERS * 2 * 2 * 8 * 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    return store_model(LlamaForCausalLM(config), tmp_path_factory.mktemp("steps"), "tiny")


@pytest.fixture
def engine(store: Store) -> PackedEngine:
    return engine_of(store, "tiny", 0, LAYERS - 1)


def _open(engine: PackedEngine, number: int, tokens: int = 64, sampling: Sampling = GREEDY) -> tuple[int, int]:
    key = (number, 1)
    engine.open(key, SessionPlan(engine.shard.start, engine.shard.end, tokens, sampling))
    return key


def _code(result: StepResult) -> str | None:
    return None if result.error is None else result.error.code


def test_a_bad_item_fails_alone(engine: PackedEngine) -> None:
    good, late, beyond, no_token = (_open(engine, n, 4) for n in range(4))
    rows = Rows("float32", (1, HIDDEN), bytes(HIDDEN * 4))
    results = engine.step(
        [
            StepItem((9, 9), 0, token_ids=(1,)),
            StepItem(late, 2, token_ids=(1,)),
            StepItem(good, 0, token_ids=(1, 2), sample=True),
            StepItem(beyond, 0, token_ids=(1,) * 5),
            StepItem(no_token, 0, rows=rows),
        ]
    )
    assert [_code(r) for r in results] == [
        "unknown_session", "bad_position", None, "beyond_reservation", "invalid_request",
    ]  # fmt: skip
    assert results[2].token is not None
    again = engine.step([StepItem(late, 0, token_ids=(1, 2), sample=True)])
    assert again[0].token is not None and again[0].token.token_id == results[2].token.token_id


def test_a_token_outside_the_vocabulary_fails_its_session_alone(engine: PackedEngine) -> None:
    good, bad = _open(engine, 1), _open(engine, 2)
    results = engine.step(
        [StepItem(bad, 0, token_ids=(300,), sample=True), StepItem(good, 0, token_ids=(299,), sample=True)]
    )
    assert [_code(r) for r in results] == ["invalid_request", None]


def test_rows_that_are_no_numbers_fail_their_session_alone(store: Store) -> None:
    tail = engine_of(store, "tiny", 1, LAYERS - 1)
    good, bad = _open(tail, 1), _open(tail, 2)
    bad_rows = Rows("float32", (1, HIDDEN), memoryview(bytearray(b"\xff" * HIDDEN * 4)))
    good_rows = Rows("float32", (1, HIDDEN), bytes(torch.ones(HIDDEN).numpy()))
    results = tail.step([StepItem(bad, 0, rows=bad_rows, sample=True), StepItem(good, 0, rows=good_rows, sample=True)])
    assert [_code(r) for r in results] == ["nan", None]
    assert results[1].token is not None


@pytest.mark.parametrize(
    "rows",
    [
        Rows("bfloat16", (1, HIDDEN), bytes(HIDDEN * 2)),
        Rows("float32", (1, HIDDEN - 1), bytes(HIDDEN * 4 - 4)),
        Rows("float32", (2, HIDDEN), bytes(HIDDEN * 4)),
    ],
)
def test_rows_of_another_shape_are_refused(store: Store, rows: Rows) -> None:
    tail = engine_of(store, "tiny", 1, LAYERS - 1)
    key = _open(tail, 1)
    assert _code(tail.step([StepItem(key, 0, rows=rows)])[0]) == "invalid_request"
    with pytest.raises(InvalidRequest):
        tail.forward(rows, 1, LAYERS - 1)


def test_only_the_end_of_a_prefill_gives_a_token(engine: PackedEngine) -> None:
    key = _open(engine, 1)
    middle = engine.step([StepItem(key, 0, token_ids=(1, 2))])[0]
    assert (middle.rows, middle.token, middle.error) == (None, None, None)
    assert engine.step([StepItem(key, 2, token_ids=(3,), sample=True)])[0].token is not None


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_the_size_of_chunks_changes_nothing(engine: PackedEngine, chunk: int) -> None:
    prompt = [(7 * n) % 300 for n in range(60)]
    whole = Ring([(engine, 0, LAYERS - 1)]).generate([prompt], 6)[0]
    parts = Ring([(engine, 0, LAYERS - 1)]).generate([prompt], 6, chunk=chunk)[0]
    assert parts.token_ids == whole.token_ids


def test_a_sampled_text_is_the_same_whatever_runs_beside_it(engine: PackedEngine) -> None:
    ring = Ring([(engine, 0, LAYERS - 1)])
    sampling = Sampling(temperature=1.0, seed=7)
    prompts = [[5, 6, 7], [1] * 20, [9], [8, 7]]
    alone = ring.generate(prompts[:1], 16, sampling=sampling)[0].token_ids
    assert ring.generate(prompts, 16, sampling=sampling)[0].token_ids == alone
    assert ring.generate(prompts[:1], 16, sampling=Sampling(seed=8))[0].token_ids != alone


def test_a_resumed_generation_draws_what_the_unbroken_one_would_have(engine: PackedEngine) -> None:
    sampling = Sampling(seed=11, frequency_penalty=0.5, repetition_penalty=1.2)
    whole = Ring([(engine, 0, LAYERS - 1)]).generate([[5, 6, 7]], 12, sampling=sampling)[0].token_ids
    known = (5, 6, 7, *whole[:5])
    key = (1, 2)
    engine.open(key, SessionPlan(0, LAYERS - 1, 15, sampling, (5, 6, 7), tuple(whole[:5])))
    rest, position, todo = [], 0, known
    while len(rest) < 7:
        token = engine.step([StepItem(key, position, token_ids=todo, sample=True)])[0].token
        assert token is not None
        position, todo = position + len(todo), (token.token_id,)
        rest.append(token.token_id)
    assert rest == whole[5:]


def test_kv_is_reserved_at_open_and_free_after_close(store: Store) -> None:
    block = BLOCK_TOKENS * TOKEN_BYTES
    engine = engine_of(store, "tiny", 0, LAYERS - 1, budget_bytes=3 * block)
    assert engine.kv_bytes_per_token(0, LAYERS - 1) == TOKEN_BYTES
    first, second = _open(engine, 1, BLOCK_TOKENS + 1), _open(engine, 2, 1)
    assert engine.kv_use().reserved_bytes == 3 * block and engine.kv_use().sessions == 2
    with pytest.raises(Overloaded):
        _open(engine, 3, 1)
    engine.close(first)
    assert engine.kv_use().reserved_bytes == block
    _open(engine, 3, 2 * BLOCK_TOKENS)
    for key in (second, (3, 1), (77, 7)):
        engine.close(key)
    assert (engine.kv_use().reserved_bytes, engine.kv_use().sessions) == (0, 0)


@pytest.mark.parametrize(("start", "end", "tokens"), [(0, LAYERS, 1), (0, 0, 0), (0, 0, 513), (2, 1, 4)])
def test_a_session_that_does_not_fit_the_shard_or_the_model_is_refused(
    engine: PackedEngine, start: int, end: int, tokens: int
) -> None:
    with pytest.raises(InvalidRequest):
        engine.open((1, 1), SessionPlan(start, end, tokens))
    assert engine.kv_use().reserved_bytes == 0


def test_a_second_open_of_a_session_leaves_the_first(engine: PackedEngine) -> None:
    key = _open(engine, 1)
    with pytest.raises(InvalidRequest):
        _open(engine, 1)
    assert engine.step([StepItem(key, 0, token_ids=(1,), sample=True)])[0].token is not None


class _Narrow:
    """A shard whose memory holds steps of one session only, of sessions that do not start with token 13."""

    def __init__(self, engine: PackedEngine) -> None:
        self._inner = engine._loaded
        self._run = self._inner.run

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run(self, rows: torch.Tensor, spans: list, *more: object) -> torch.Tensor:
        self._run(rows, spans, *more)  # type: ignore[arg-type]
        if len(spans) > 1 or spans[0].kv.capacity == 2 * BLOCK_TOKENS:
            raise MemoryError
        return self._run(rows, spans, *more)  # type: ignore[arg-type]


def test_a_step_that_runs_out_of_memory_ends_only_the_sessions_that_do_not_fit_alone(store: Store) -> None:
    expected = Ring([(engine_of(store, "tiny", 0, LAYERS - 1), 0, LAYERS - 1)]).generate([[1, 2]], 1)[0].token_ids
    narrow = PackedEngine(_Narrow(engine_of(store, "tiny", 0, LAYERS - 1)), KV_BUDGET_BYTES)  # type: ignore[arg-type]
    small, large = _open(narrow, 1), _open(narrow, 2, BLOCK_TOKENS + 1)
    results = narrow.step([StepItem(small, 0, token_ids=(1, 2), sample=True), StepItem(large, 0, token_ids=(3,))])
    assert isinstance(results[1].error, Overloaded) and _code(results[1]) == "node_oom"
    assert results[0].token is not None and [results[0].token.token_id] == expected


def test_rows_leave_and_enter_without_a_copy(store: Store) -> None:
    head = engine_of(store, "tiny", 0, 0)
    key = _open(head, 1)
    rows = head.step([StepItem(key, 0, token_ids=(1, 2, 3))])[0].rows
    assert rows is not None and rows.shape == (3, HIDDEN) and rows.dtype == "float32"
    assert isinstance(rows.data, memoryview) and rows.data.nbytes == rows.size_bytes == 3 * HIDDEN * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_says_so_in_its_rows(store: Store, dtype: str) -> None:
    head = PackedEngine(load_shard(store.open("tiny"), Shard(0, 0), dtype), KV_BUDGET_BYTES)
    tail = PackedEngine(load_shard(store.open("tiny"), Shard(1, LAYERS - 1), dtype), KV_BUDGET_BYTES)
    rows = head.forward([1, 2, 3], 0, 0)
    assert rows.dtype == dtype == head.facts.dtype and rows.size_bytes == 3 * HIDDEN * ITEMSIZE[dtype]
    logits = tail.forward(rows, 1, LAYERS - 1)
    assert logits.dtype == "float32" and logits.shape == (1, 300)


def test_a_shard_measures_itself_and_leaves_nothing_open(store: Store) -> None:
    for start, end in ((0, LAYERS - 1), (1, 1)):
        engine = engine_of(store, "tiny", start, end)
        speed = engine.measure()
        assert speed.decode_tps > 0 and speed.decode_batch8_tps > 0 and speed.prefill_tps > 0 and speed.spread >= 0
        assert engine.kv_use().sessions == 0


def test_token_ids_do_not_enter_a_later_layer(store: Store) -> None:
    tail = engine_of(store, "tiny", 1, LAYERS - 1)
    for tokens in ([1], []):
        with pytest.raises(MeshnetError):
            tail.forward(tokens, 1, LAYERS - 1)
