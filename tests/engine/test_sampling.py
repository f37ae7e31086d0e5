from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.chat import Sampling
from meshnet.domain.errors import NodeFailed
from meshnet.engine.sampling import History, sample, uniform

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 0.5])


def _ids(sampling: Sampling, positions: range = range(300), logits: torch.Tensor = LOGITS) -> list[int]:
    return [sample(logits, sampling, History((), ()), position).token_id for position in positions]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0), Sampling(top_p=0), Sampling(top_k=1), Sampling(temperature=1e-320), Sampling(min_p=1.0)],
)
def test_the_best_token_is_taken_when_the_settings_leave_no_other(sampling: Sampling) -> None:
    assert set(_ids(sampling)) == {1}


@given(
    temperature=st.sampled_from([0, 1e-300, 1e-9, 1e-4, 0.7, 2.0]),
    top_p=st.sampled_from([0, 1e-9, 1e-4, 0.5, 1.0]),
    top_k=st.integers(0, 9),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(-(2**63), 2**64),
    position=st.integers(0, 2**31),
)
def test_any_settings_give_a_token(
    temperature: float, top_p: float, top_k: int, min_p: float, seed: int, position: int
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    assert 0 <= sample(LOGITS, sampling, History((), ()), position).token_id < 5


def test_frequencies_follow_the_probabilities_when_nothing_is_cut() -> None:
    ids = _ids(Sampling(seed=3), range(4000))
    expected = torch.softmax(LOGITS, 0).tolist()
    for token_id, probability in enumerate(expected):
        assert ids.count(token_id) / 4000 == pytest.approx(probability, abs=0.03)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert _ids(Sampling(seed=7)) == _ids(Sampling(seed=7))
    assert _ids(Sampling(seed=7))[40:50] == _ids(Sampling(seed=7), range(40, 50))
    assert _ids(Sampling(seed=7)) != _ids(Sampling(seed=8))
    assert uniform(7, 11) == uniform(7, 11) != uniform(7, 12)
    assert len({uniform(seed, 0) for seed in (-1, 0, 1, 2**64 - 1)}) == 4


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=2), {1, 2}),
        (Sampling(top_p=0.9), {1, 2, 0}),
        (Sampling(top_p=0.5), {1}),
        (Sampling(min_p=0.2), {1, 2}),
        (Sampling(top_k=3, top_p=0.8), {1, 2}),
        (Sampling(logit_bias={3: 100.0}), {3}),
        (Sampling(logit_bias={1: -100.0, 9: 5.0}, top_k=1), {2}),
    ],
)
def test_only_the_tokens_that_are_left_are_drawn(sampling: Sampling, allowed: set[int]) -> None:
    assert set(_ids(sampling)) == allowed


def test_the_nucleus_of_a_flat_vocabulary_is_found_beyond_the_first_try() -> None:
    ids = _ids(Sampling(top_p=0.9), range(400), torch.zeros(5000))
    assert len(set(ids)) > 300


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(frequency_penalty=1.0), [1.0, 1.0, 2.0, -1.0, 0.5]),
        (Sampling(presence_penalty=1.5), [1.0, 1.5, 2.0, -1.0, 0.5]),
        (Sampling(repetition_penalty=2.0), [1.0, 1.5, 2.0, -2.0, 0.5]),
    ],
)
def test_penalties_look_back_over_their_tokens(sampling: Sampling, expected: list[float]) -> None:
    logits = LOGITS.clone()
    History(prompt_ids=[3], produced_ids=[1, 1]).penalize(logits, sampling)
    assert logits.tolist() == pytest.approx(expected)


def test_a_sampled_token_counts_for_the_penalties_of_the_next() -> None:
    history = History((), ())
    sampling = Sampling(temperature=0, presence_penalty=2.5)
    first = sample(LOGITS, sampling, history, 0).token_id
    history.add(first)
    assert (first, sample(LOGITS, sampling, history, 1).token_id) == (1, 2)


def test_logprobs_are_the_models_own_whatever_the_settings() -> None:
    token = sample(LOGITS, Sampling(temperature=0, logit_bias={3: 100.0}, logprobs=2), History((), ()), 0)
    expected = torch.log_softmax(LOGITS, 0).tolist()
    assert token.token_id == 3
    assert token.logprob == pytest.approx(expected[3])
    assert [token_id for token_id, _ in token.top_logprobs] == [1, 2]
    assert token.top_logprobs[0][1] == pytest.approx(expected[1])
    assert sample(LOGITS, Sampling(logprobs=0), History((), ()), 0).top_logprobs == ()
    assert sample(LOGITS, Sampling(), History((), ()), 0).logprob is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_fail_the_session(bad: float) -> None:
    logits = LOGITS.clone()
    logits[2] = bad
    with pytest.raises(NodeFailed) as raised:
        sample(logits, Sampling(), History((), ()), 0)
    assert raised.value.code == "nan"


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = LOGITS.clone()
    sample(logits, Sampling(logit_bias={0: 5.0}, presence_penalty=1.0), History((), [1]), 0)
    assert torch.equal(logits, LOGITS)
