"""Everything a node needs of the engine, made from the store."""

from __future__ import annotations

import torch

from meshnet.domain.shards import Shard
from meshnet.engine.loading import Opener, open_bytes
from meshnet.engine.shard import load_shard
from meshnet.engine.steps import PackedEngine
from meshnet.engine.text import ModelTextCodec
from meshnet.weights.store import Store

DEFAULT_KV_BUDGET_BYTES = 1 << 30
"""1 GiB: 8 full contexts of SmolLM2-135M's 30 layers at float32 need 2.8 GiB, ordinary chats a tenth. A larger budget
admits more sessions; memory is used only as tokens fill it."""


def load_engine(
    store: Store,
    model_key: str,
    shard: Shard,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    kv_budget_bytes: int = DEFAULT_KV_BUDGET_BYTES,
    opener: Opener = open_bytes,
) -> tuple[PackedEngine, ModelTextCodec | None]:
    """The engine of ``shard``, and the codec where the shard is a head. Raises NotFound, WeightsError, InvalidRequest.

    ``threads`` sets torch's threads for the whole process; None leaves them.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    model = store.open(model_key)
    engine = PackedEngine(load_shard(model, shard, dtype, device, opener), kv_budget_bytes)
    codec = ModelTextCodec.load(model.path) if shard.start == 0 else None
    return engine, codec
