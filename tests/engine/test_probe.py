"""A shard measures itself within its KV budget, and the machine with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_testing import engine_of, store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.engine import ModelFacts, SessionPlan, StepItem
from meshnet.domain.errors import Overloaded
from meshnet.domain.shards import Shard
from meshnet.engine.probe import accelerators, machine_rates, tail_layers
from meshnet.weights.store import Store

TOKEN_BYTES = 2 * 2 * 8 * 4
"""Keys and values of one layer: 2 heads of 8 float32."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
    )
    folder: Path = tmp_path_factory.mktemp("probe")
    return store_model(LlamaForCausalLM(config), folder, "tiny")


@pytest.mark.parametrize("sessions", [1, 3, 8])
def test_budget_of_few_sessions_is_measured_with_as_many(store: Store, sessions: int) -> None:
    engine = engine_of(store, "tiny", 0, 0, budget_bytes=sessions * 128 * TOKEN_BYTES)
    speed = engine.measure()
    assert speed.decode_tps > 0 and speed.decode_batch8_tps > 0
    assert speed.extra["matrix_gflops"] > 0 and speed.extra["memory_gb_s"] > 0
    assert engine.kv_use().sessions == 0


def test_output_head_is_measured_in_layers(tmp_path: Path) -> None:
    """A vocabulary that costs far more than a layer. Nodes without the last layer have no such cost."""
    config = LlamaConfig(
        vocab_size=60_000,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    store = store_model(LlamaForCausalLM(config), tmp_path, "wide")
    assert engine_of(store, "wide", 0, 2).measure().extra["tail_layers"] > 1.0
    assert "tail_layers" not in engine_of(store, "wide", 0, 1).measure().extra


def test_output_head_is_what_the_clock_says() -> None:
    class Timed:
        """Three layers of 2 s and an output head."""

        shard, facts = Shard(0, 2), ModelFacts("m", "r", 3, 8, 100, 64, "float32")

        def __init__(self, head_s: float = 5.0) -> None:
            self.at, self.ends, self.head_s = 0.0, {}, head_s

        def open(self, key: tuple[int, int], plan: SessionPlan) -> None:
            self.ends[key] = plan.end_layer

        def close(self, key: tuple[int, int]) -> None:
            del self.ends[key]

        def step(self, items: list[StepItem]) -> None:
            end = self.ends[items[0].key]
            self.at += 2.0 * (end + 1) + (self.head_s if end == 2 else 0.0)

    engine = Timed()
    assert tail_layers(engine, lambda: engine.at) == pytest.approx(2.5)  # type: ignore[arg-type]
    assert not engine.ends
    slow = Timed(head_s=9000.0)
    assert tail_layers(slow, lambda: slow.at) == 1000.0, "as many as a heartbeat may say"  # type: ignore[arg-type]


def test_budget_of_no_session_says_so(store: Store) -> None:
    with pytest.raises(Overloaded, match="KV"):
        engine_of(store, "tiny", 0, 0, budget_bytes=TOKEN_BYTES).measure()


def test_rates_follow_the_clock() -> None:
    ticks = iter(range(10**6))
    rates = machine_rates(lambda: float(next(ticks)))
    assert rates["matrix_gflops"] == pytest.approx(2 * 1024**3 / 1e9)
    assert rates["memory_gb_s"] == pytest.approx(2 * (64 << 20) / 1e9)


def test_accelerators_are_named_with_their_memory() -> None:
    assert all(found.name and found.kind for found in accelerators())
