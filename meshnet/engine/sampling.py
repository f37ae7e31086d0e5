"""Logits of one row -> one token, as ``domain.chat.Sampling`` asks.

Order: logit_bias, penalties, then temperature, top_k, top_p and min_p. The draw is the inverse of the cumulated
probabilities at one uniform number, and that number is a pure function of (seed, position): Philox, a counter-based
generator, keyed by the seed and counting positions. So a resumed generation, other sessions in the batch or another
node change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from meshnet.domain.chat import Sampling
from meshnet.domain.engine import SampledToken
from meshnet.domain.errors import NodeFailed

_NUCLEUS_TRY = 1024
"""Most likely tokens sorted first for top_p: they nearly always hold the nucleus, and sorting a whole vocabulary
costs milliseconds."""


class History:
    """Tokens a tail looks back over: the prompt for the repetition penalty, produced ones for all three."""

    __slots__ = ("_counts", "_seen")

    def __init__(self, prompt_ids: Iterable[int], produced_ids: Iterable[int]) -> None:
        self._counts = Counter(produced_ids)
        self._seen = set(prompt_ids) | set(self._counts)

    def add(self, token_id: int) -> None:
        self._counts[token_id] += 1
        self._seen.add(token_id)

    def penalize(self, logits: Tensor, sampling: Sampling) -> None:
        """In place, on float32 (vocab,)."""
        if sampling.repetition_penalty != 1.0 and self._seen:
            ids = torch.tensor(sorted(self._seen))
            values = logits[ids]
            factor = sampling.repetition_penalty
            logits[ids] = torch.where(values > 0, values / factor, values * factor)
        if (sampling.frequency_penalty or sampling.presence_penalty) and self._counts:
            ids = torch.tensor(list(self._counts))
            counts = torch.tensor(list(self._counts.values()), dtype=torch.float32)
            logits[ids] -= counts * sampling.frequency_penalty + sampling.presence_penalty


def sample(logits: Tensor, sampling: Sampling, history: History, position: int) -> SampledToken:
    """Pick a token from float32 logits (vocab,) for ``position``. log-probabilities are the model's own, before any
    setting. Raises NodeFailed(code="nan") for logits that are no numbers."""
    top = logits.max()
    if not bool(torch.isfinite(top)) or bool(torch.isnan(logits).any()):
        raise NodeFailed("The logits of this session are not finite numbers.", code="nan")
    changed = _adjust(logits, sampling, history)
    token_id = int(changed.argmax()) if sampling.is_greedy else _draw(changed, sampling, position)
    if sampling.logprobs is None:
        return SampledToken(token_id)
    return _with_logprobs(logits, token_id, sampling.logprobs)


def uniform(seed: int, position: int) -> float:
    """One number in [0, 1), the same for the same (seed, position) on every machine."""
    bits = np.random.Philox(key=seed % (1 << 128), counter=position)
    return float(np.random.Generator(bits).random())


def _adjust(logits: Tensor, sampling: Sampling, history: History) -> Tensor:
    changed = logits.clone()
    for token_id, bias in sampling.logit_bias.items():
        if 0 <= token_id < changed.shape[0]:
            changed[token_id] += bias
    history.penalize(changed, sampling)
    return changed


def _draw(logits: Tensor, sampling: Sampling, position: int) -> int:
    # float64, and relative to the best: the tiniest temperature gives exp(-inf) = 0 and exp(0) = 1, never nan.
    scores = logits.double()
    weights = torch.exp((scores - scores.max()) / sampling.temperature)
    ids: Tensor | None = None
    if 0 < sampling.top_k < weights.shape[0]:
        weights, ids = weights.topk(sampling.top_k)
    if sampling.top_p < 1.0:
        weights, ids = _nucleus(weights, ids, sampling.top_p)
    if sampling.min_p > 0.0:
        weights = torch.where(weights >= sampling.min_p * weights.max(), weights, 0.0)
    total = weights.cumsum(0)
    target = uniform(sampling.seed, position) * float(total[-1])
    index = int(torch.searchsorted(total, torch.tensor(target, dtype=total.dtype), right=True))
    if index >= weights.shape[0]:  # Rounding at the very end: the last token that has any weight.
        index = int(weights.nonzero()[-1])
    return index if ids is None else int(ids[index])


def _nucleus(weights: Tensor, ids: Tensor | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The smallest set of most likely tokens that holds ``top_p`` of the probability."""
    total = float(weights.sum())
    count = min(_NUCLEUS_TRY, weights.shape[0])
    best, order = weights.topk(count)
    if float(best.sum()) < top_p * total and count < weights.shape[0]:
        best, order = weights.sort(descending=True)
    before = best.cumsum(0) - best
    keep = max(int((before < top_p * total).sum()), 1)
    order = order[:keep]
    return best[:keep], order if ids is None else ids[order]


def _with_logprobs(logits: Tensor, token_id: int, alternatives: int) -> SampledToken:
    logprobs = torch.log_softmax(logits, 0)
    values, ids = logprobs.topk(min(alternatives, logprobs.shape[0])) if alternatives else (logprobs[:0], logprobs[:0])
    pairs = tuple(zip((int(i) for i in ids), (float(v) for v in values), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), pairs)
