"""Every family, tiny and random, with the settings that usually hide mistakes: split run == whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from engine_testing import Ring, Stream, engine_of, store_model
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from meshnet.engine.steps import PackedEngine
from meshnet.weights.store import Store

LAYERS = 4
VOCAB = 300
SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 256, "initializer_range": 0.3,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LINEAR = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "head_dim": 16, "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 16,
}  # fmt: skip
WINDOW = 6
WINDOWED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


def _gemma3(**more: Any) -> dict[str, Any]:
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    }
    sizes = {**SIZES, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": WINDOW, "rope_parameters": rope}
    caps = {"attn_logit_softcapping": 8.0, "final_logit_softcapping": 5.0, "layer_types": WINDOWED}
    return {**sizes, **caps, **more}


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(
        **SIZES, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, head_dim=12
    ),
    "llama-tied-mha": lambda: transformers.LlamaConfig(
        **{**SIZES, "num_key_value_heads": 4}, tie_word_embeddings=True
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        **SIZES, rope_parameters=YARN, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, **MOE, head_dim=16, decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True
    ),
    "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**SIZES, **LINEAR),
    "qwen3_5_moe": lambda: transformers.Qwen3_5MoeTextConfig(
        **SIZES, **LINEAR, **MOE, shared_expert_intermediate_size=20
    ),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=WINDOW, head_dim=10),
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_gemma3()),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW, layer_types=WINDOWED,
        rope_parameters={**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES, sliding_window=WINDOW, rope_parameters=LONG),
    "phi3-partial": lambda: transformers.Phi3Config(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "smollm3": lambda: transformers.SmolLM3Config(
        **SIZES, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=WINDOW
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES, rope_parameters=LLAMA3, attention_bias=True),
    "granite": lambda: transformers.GraniteConfig(
        **SIZES, embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.4, attention_multiplier=0.2
    ),
}  # fmt: skip


@dataclass
class Tiny:
    whole: PreTrainedModel
    store: Store
    engine: PackedEngine

    def logits(self, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.whole(torch.tensor([ids])).logits[0, -1].float()


@pytest.fixture(scope="module", params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    torch.manual_seed(7)
    config = FAMILIES[request.param]()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    _stir(model)
    store = store_model(model, tmp_path_factory.mktemp(request.param), "tiny")
    yield Tiny(model, store, engine_of(store, "tiny", 0, LAYERS - 1))


def _stir(model: PreTrainedModel) -> None:
    """Give parameters that start as ones or zeros (norms, biases, sinks) values that a lost one would show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter += torch.randn_like(parameter) * 0.2


def _chain(hops: list[tuple[PackedEngine, int, int]], ids: list[int]) -> torch.Tensor:
    rows: Any = ids
    for engine, start, end in hops:
        rows = engine.forward(rows, start, end)
    return torch.frombuffer(bytearray(rows.data), dtype=torch.float32)


def _prompt(length: int, seed: int = 1) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_logits_equal_the_whole_model_when_split_at_every_boundary(tiny: Tiny) -> None:
    ids = _prompt(29)
    expected = tiny.logits(ids)
    single = [(engine_of(tiny.store, "tiny", layer, layer), layer, layer) for layer in range(LAYERS)]
    chains = {"single layers": single, "whole": [(tiny.engine, 0, LAYERS - 1)]}
    for cut in range(1, LAYERS):
        head, tail = engine_of(tiny.store, "tiny", 0, cut - 1), engine_of(tiny.store, "tiny", cut, LAYERS - 1)
        chains[f"cut before {cut}"] = [(head, 0, cut - 1), (tail, cut, LAYERS - 1)]
        chains[f"entered at {cut}"] = [(head, 0, cut - 1), (tiny.engine, cut, LAYERS - 1)]
    for name, hops in chains.items():
        torch.testing.assert_close(_chain(hops, ids), expected, atol=2e-4, rtol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_ragged_sessions_in_chunks_equal_the_whole_model_one_by_one(tiny: Tiny) -> None:
    prompts = [_prompt(21, 2), _prompt(1, 3), _prompt(9, 4)]
    ring = Ring([(tiny.engine, 0, 1), (tiny.engine, 2, LAYERS - 1)])
    # A family whose positions depend on the final length: keep each stream on one side of the border.
    for stream in _streams(ring, prompts):
        _assert_follows(tiny, stream)


def _streams(ring: Ring, prompts: list[list[int]]) -> list[Stream]:
    split = [(engine, start, end) for engine, start, end in ring.hops]
    return Ring(_distinct(split)).generate(prompts, n_tokens=5, chunk=7)


class _OtherKeys:
    """The same engine under other session keys: two hops of one ring on one engine must not share a session."""

    def __init__(self, engine: PackedEngine) -> None:
        self._engine = engine

    def open(self, key: tuple[int, int], plan: Any) -> None:
        self._engine.open((key[0], 2), plan)

    def close(self, key: tuple[int, int]) -> None:
        self._engine.close((key[0], 2))

    def step(self, items: list[Any]) -> list[Any]:
        from dataclasses import replace

        return self._engine.step([replace(item, key=(item.key[0], 2)) for item in items])


def _distinct(hops: list[tuple[PackedEngine, int, int]]) -> list[Any]:
    return [hops[0], *((_OtherKeys(engine), start, end) for engine, start, end in hops[1:])]


def _assert_follows(tiny: Tiny, stream: Stream) -> None:
    """Each token is the whole model's choice after the same tokens, with the same log-probability."""
    ids = list(stream.prompt)
    for token in stream.produced:
        expected = torch.log_softmax(tiny.logits(ids), 0)
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=2e-3)
        assert float(expected.max()) - float(expected[token.token_id]) < 1e-3
        ids.append(token.token_id)
