"""The real model over real rings: every route gives the tokens of transformers' own generate, in float32, greedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from daemons.node.deadlines import Deadlines
from meshnet.domain.chat import ChatMessage
from meshnet.domain.shards import parse_shard
from meshnet.engine.families import text_config
from meshnet.engine.load import load_engine
from meshnet.engine.steps import PackedEngine
from meshnet.engine.text import ModelTextCodec
from meshnet.weights.store import Store
from meshnet.wire.messages import Generate
from tests.mesh.ring import Answer, Mesh, RunningNode, open_mesh

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2-135m"
N_TOKENS = 64
NEAR_TIE = 1e-3
PROMPTS = (
    "What is the capital of France?",
    "Count from 1 to 10.",
    "Say 日本語 please",
    "Write a short story about a lighthouse keeper and the sea. " * 4,
    "The quick brown fox jumps over the lazy dog; then it rests. " * 45,
)
ROUTES = (("0-29",), ("0-14", "15-29"), ("0-9", "10-19", "20-29"), ("0-14", "0-29"))


@dataclass(frozen=True, slots=True)
class Real:
    reference: PreTrainedModel
    codec: ModelTextCodec
    engines: dict[str, PackedEngine]
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def real(real_store: Store) -> Iterator[Real]:
    torch.set_num_threads(1)
    stored = real_store.open(MODEL)
    reference = AutoModelForCausalLM.from_config(text_config(stored.config)).eval()
    weights: dict[str, torch.Tensor] = {}
    for file in stored.path.glob("*.safetensors"):
        weights |= load_file(file)
    reference.load_state_dict(weights, strict=False)
    reference.tie_weights()
    shards = sorted({shard for route in ROUTES for shard in route})
    with closing(ModelTextCodec.load(stored.path)) as codec:
        prompts = [codec.encode_chat([ChatMessage("user", text)]) for text in PROMPTS]
        engines = {}
        for shard in shards:
            engines[shard], unused = load_engine(real_store, MODEL, parse_shard(shard), kv_budget_bytes=4 << 30)
            if unused is not None:
                unused.close()
        yield Real(reference, codec, engines, prompts, [_generate(reference, prompt) for prompt in prompts])


def _generate(reference: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = reference.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=N_TOKENS,
            min_new_tokens=N_TOKENS,
            do_sample=False,
            pad_token_id=2,
        )
    return out[0, len(prompt) :].tolist()


def _assert_same(real: Real, index: int, found: list[int]) -> None:
    """Equal, or different first where the reference's best two logits lie closer than NEAR_TIE."""
    prompt, expected = real.prompts[index], real.expected[index]
    assert len(found) == len(expected)
    at = next((n for n, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), None)
    if at is None:
        return
    with torch.inference_mode():
        best = real.reference(torch.tensor([prompt + expected[:at]])).logits[0, -1].topk(2)
    assert float(best.values[0] - best.values[1]) < NEAR_TIE, f"token {at}: {expected[at]} and {found[at]}"


async def _add(mesh: Mesh, real: Real, shard: str) -> RunningNode:
    mesh.model = real.engines[shard].facts
    codec = real.codec if shard.startswith("0-") else None
    return await mesh.add(shard, deadlines=Deadlines(), made=(real.engines[shard], codec))


def _no_end(ask: Generate) -> Generate:
    # transformers bans end tokens to reach min_new_tokens; the same is said here with a bias.
    sampling = replace(ask.request.sampling, logit_bias={2: -1e9})
    request = replace(ask.request, sampling=sampling, ignore_eos=True)
    return msgspec.structs.replace(ask, request=request, deadline_s=500.0)


async def _ask(mesh: Mesh, nodes: Sequence[RunningNode], index: int) -> Answer:
    return await mesh.ask(_route(nodes), PROMPTS[index], max_tokens=N_TOKENS, change=_no_end)


def _route(nodes: Sequence[RunningNode]):
    hops, start = [], 0
    for running in nodes:
        end = running.node.identity.holding.shard.end
        hops.append(running.hop(start, end))
        start = end + 1
    return tuple(hops)


@pytest.mark.parametrize("shards", ROUTES, ids=" ".join)
async def test_every_route_gives_the_tokens_of_generate(real: Real, shards: tuple[str, ...]) -> None:
    assert len(real.prompts[-1]) > 600
    async with open_mesh() as mesh:
        nodes = [await _add(mesh, real, shard) for shard in shards]
        answers = [await _ask(mesh, nodes, index) for index in range(len(PROMPTS))]
        for index, answer in enumerate(answers):
            await answer.finished(within_s=500)
            _assert_same(real, index, answer.token_ids)
        await mesh.all_free()


async def test_eight_at_once_give_the_tokens_of_one_by_one(real: Real) -> None:
    async with open_mesh() as mesh:
        nodes = [await _add(mesh, real, shard) for shard in ("0-9", "10-19", "20-29")]
        answers = [await _ask(mesh, nodes, number % 4) for number in range(8)]
        for number, answer in enumerate(answers):
            await answer.finished(within_s=500)
            _assert_same(real, number % 4, answer.token_ids)
        assert nodes[2].node.worker.forward_steps < 8 * N_TOKENS / 2  # Most rows travelled together.
