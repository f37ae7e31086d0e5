"""Answers of whole rings: routes of any length, sub-ranges, many at once, resumed anywhere."""

from __future__ import annotations

import asyncio

import pytest

from tests.mesh.fake_engine import expected_text, expected_tokens, prompt_ids
from tests.mesh.ring import open_mesh, resumed

PROMPT = "what is a mesh"


@pytest.mark.parametrize(
    "shards",
    [("0-29",), ("0-14", "15-29"), ("0-9", "10-19", "20-29"), ("0-6", "7-14", "15-22", "23-29"), ("0-14", "0-29")],
)
async def test_answer_equals_one_whole_engine(shards: tuple[str, ...]) -> None:
    async with open_mesh() as mesh:
        nodes = [await mesh.add(shard) for shard in shards]
        answer = await mesh.ask(mesh.route(*nodes), PROMPT)
        end = await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids(PROMPT), 12)
        assert answer.text == expected_text(prompt_ids(PROMPT), 12)
        assert (end.finish_reason, end.prompt_tokens, end.completion_tokens) == ("length", 4, 12)
        assert answer.deltas[0].prompt_token_ids == tuple(prompt_ids(PROMPT))
        assert all(len(delta.hop_us) == len(shards) for delta in answer.deltas)
        await mesh.all_free()


async def test_eight_at_once_equal_one_by_one() -> None:
    async with open_mesh() as mesh:
        nodes = [await mesh.add(shard) for shard in ("0-9", "10-19", "20-29")]
        prompts = [f"question number {n} of eight" for n in range(8)]
        answers = await asyncio.gather(*(mesh.ask(mesh.route(*nodes), prompt, max_tokens=30) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            await answer.finished()
            assert answer.token_ids == expected_tokens(prompt_ids(prompt), 30)
        await mesh.all_free()


async def test_a_prompt_of_many_chunks_goes_round_in_pieces() -> None:
    prompt = " ".join(f"word{n}" for n in range(1500))
    async with open_mesh() as mesh:
        nodes = [await mesh.add(shard) for shard in ("0-9", "10-19", "20-29")]
        answer = await mesh.ask(mesh.route(*nodes), prompt, max_tokens=5)
        await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids(prompt), 5)
        assert len(nodes[2].engine.steps) > 5


@pytest.mark.parametrize("done", [0, 1, 7, 11, 12])
async def test_resumed_answer_equals_unbroken_one(done: int) -> None:
    ids = prompt_ids(PROMPT)
    tokens, text = expected_tokens(ids, 12), expected_text(ids, 12)
    sent = len(expected_text(ids, done))
    async with open_mesh() as mesh:
        nodes = [await mesh.add(shard) for shard in ("0-14", "15-29")]
        answer = await mesh.ask(mesh.route(*nodes), change=resumed(9, 1, ids, tokens[:done], sent))
        end = await answer.finished()
        assert answer.token_ids == tokens[done:]
        assert answer.text == text[sent:]
        assert (end.prompt_tokens, end.completion_tokens) == (4, 12)
        await mesh.all_free()
