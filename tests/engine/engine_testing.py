"""What engine tests share: tiny stored models, and rings of shards driven step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedModel

from meshnet.domain.chat import Sampling
from meshnet.domain.engine import SampledToken, SessionKey, SessionPlan, StepItem
from meshnet.domain.shards import Shard
from meshnet.engine.shard import load_shard
from meshnet.engine.steps import PackedEngine
from meshnet.weights.progress import silent
from meshnet.weights.split import split_folder
from meshnet.weights.store import Store

KV_BUDGET_BYTES = 64 << 20
GREEDY = Sampling(temperature=0.0, logprobs=3)


def byte_tokenizer(specials: Sequence[str] = ()) -> Tokenizer:
    """256 tokens, one a byte, and control words behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def store_model(model: PreTrainedModel, folder: Path, model_key: str) -> Store:
    """Save as transformers does, then split as a pull does."""
    source, target = folder / "source", folder / "store" / model_key
    model.save_pretrained(source)
    byte_tokenizer().save(str(source / "tokenizer.json"))
    target.mkdir(parents=True)
    split_folder(source, target, model_key, "test", silent)
    return Store(folder / "store")


def engine_of(store: Store, model_key: str, start: int, end: int, budget_bytes: int = KV_BUDGET_BYTES) -> PackedEngine:
    return PackedEngine(load_shard(store.open(model_key), Shard(start, end)), budget_bytes)


@dataclass
class Stream:
    """One greedy generation on its way through a ring."""

    key: SessionKey
    prompt: list[int]
    produced: list[SampledToken] = field(default_factory=list)
    position: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.produced]

    @property
    def waiting(self) -> list[int]:
        return (self.prompt + self.token_ids)[self.position :]


class Ring:
    """Hops (engine, start_layer, end_layer) in a row, and the sessions open on all of them."""

    def __init__(self, hops: Sequence[tuple[PackedEngine, int, int]]) -> None:
        self.hops = hops

    def generate(
        self, prompts: Sequence[Sequence[int]], n_tokens: int, chunk: int = 256, sampling: Sampling = GREEDY
    ) -> list[Stream]:
        """All prompts at once: each round packs the next chunk of every stream that is not done."""
        streams = [Stream((number, 1), list(prompt)) for number, prompt in enumerate(prompts)]
        for stream in streams:
            for engine, start, end in self.hops:
                engine.open(
                    stream.key, SessionPlan(start, end, len(stream.prompt) + n_tokens, sampling, tuple(stream.prompt))
                )
        while running := [stream for stream in streams if len(stream.produced) < n_tokens]:
            self.round(running, chunk)
        for stream in streams:
            for engine, _, _ in self.hops:
                engine.close(stream.key)
        return streams

    def round(self, streams: Sequence[Stream], chunk: int) -> None:
        parts = [stream.waiting[:chunk] for stream in streams]
        rows = [None] * len(streams)
        results = []
        for engine, start, _ in self.hops:
            items = [
                StepItem(
                    stream.key,
                    stream.position,
                    token_ids=tuple(part) if start == 0 else None,
                    rows=row,
                    sample=len(part) == len(stream.waiting),
                )
                for stream, part, row in zip(streams, parts, rows, strict=True)
            ]
            results = engine.step(items)
            for result in results:
                if result.error is not None:
                    raise result.error
            rows = [result.rows for result in results]
        for stream, part, result in zip(streams, parts, results, strict=True):
            stream.position += len(part)
            if result.token is not None:
                stream.produced.append(result.token)
