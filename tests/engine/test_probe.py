"""A shard measures itself within its KV budget, and the machine with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_testing import engine_of, store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.errors import Overloaded
from meshnet.engine.probe import accelerators, machine_rates
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
