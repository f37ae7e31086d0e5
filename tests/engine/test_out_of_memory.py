"""Memory that truly runs out in a step: the system refuses the pages, torch says so, and only who needed them ends."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_testing import GREEDY, engine_of, store_model
from transformers import LlamaConfig, LlamaForCausalLM

from meshnet.domain.engine import SessionKey, SessionPlan, StepItem
from meshnet.domain.errors import Overloaded
from meshnet.engine.steps import PackedEngine

LEFT_BYTES = 16 << 20
"""What the system still gives. One row of the wide layer takes 256 KiB, a prompt of 200 takes 50 MiB."""
WIDE = 1 << 16
ROWS = 200


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> PackedEngine:
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=WIDE, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=300, max_position_embeddings=4096,
    )  # fmt: skip
    return engine_of(store_model(LlamaForCausalLM(config), tmp_path_factory.mktemp("wide"), "wide"), "wide", 0, 0)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """This process gets LEFT_BYTES more than it has, and no more."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(found[1]) * 1024 + LEFT_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def opened(engine: PackedEngine, number: int, tokens: int) -> SessionKey:
    key = (number, 1)
    engine.open(key, SessionPlan(0, 0, tokens, GREEDY))
    return key


def test_only_the_step_that_needs_the_memory_ends_and_may_come_again(engine: PackedEngine) -> None:
    small, large = opened(engine, 1, 8), opened(engine, 2, 4 * ROWS)
    asked = [
        StepItem(small, 0, token_ids=(1, 2), sample=True),
        StepItem(large, 0, token_ids=tuple(range(1, ROWS + 1)), sample=True),
    ]
    with little_memory():
        passed, failed = engine.step(asked)
    assert passed.error is None and passed.token is not None
    assert isinstance(failed.error, Overloaded) and failed.error.code == "node_oom"
    (again,) = engine.step(asked[1:])
    assert again.error is None and again.token is not None
    for key in (small, large):
        engine.close(key)
    assert engine.kv_use().reserved_bytes == 0


def test_session_that_finds_no_memory_is_refused_and_reserves_nothing(engine: PackedEngine) -> None:
    with little_memory(), pytest.raises(Overloaded) as caught:
        # 4096 tokens of KV are half a MiB: what is asked for must not fit, so ask often.
        for number in range(10, 1000):
            opened(engine, number, 4096)
    assert caught.value.code == "node_oom"
    for number in range(10, 1000):
        engine.close((number, 1))
    assert engine.kv_use().reserved_bytes == 0


def test_forward_without_memory_says_so(engine: PackedEngine) -> None:
    with little_memory(), pytest.raises(Overloaded, match="no memory"):
        engine.forward(tuple(range(1, ROWS + 1)), 0, 0)
    assert engine.forward((1, 2, 3), 0, 0).shape == (1, 300)
