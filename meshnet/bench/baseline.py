"""The baseline process of ``bench chat``: transformers' own ``generate`` on the same weights, dtype and threads.

Reads one JSON line ``{"prompt", "max_tokens"}`` from standard input per run, answers one line
``{"ttft_s", "decode_tps", "n"}``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from meshnet.weights.places import store_root
from meshnet.weights.store import Store, StoredModel


class _Clock(BaseStreamer):
    """Notes when each token arrived; the first ``put`` is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def whole_folder(model: StoredModel, folder: Path) -> Path:
    """The stored model as an ordinary Hugging Face folder, for transformers to load."""
    for entry in model.manifest.files:
        if entry.kind in ("config", "tokenizer"):
            (folder / entry.name).symlink_to(model.path / entry.name)
    tensors: dict[str, torch.Tensor] = {}
    for entry in model.manifest.files:
        if entry.kind in ("layer", "embedding", "head"):
            tensors |= load_file(model.path / entry.name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main(argv: list[str]) -> int:
    model_key, dtype, threads = argv[0], argv[1], int(argv[2])
    torch.set_num_threads(threads)
    stored = Store(store_root(os.environ)).open(model_key)
    with tempfile.TemporaryDirectory() as folder:
        path = whole_folder(stored, Path(folder))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(model, tokenizer, json.loads(line))), flush=True)
    return 0


def _run(model: Any, tokenizer: Any, asked: dict[str, Any]) -> dict[str, float]:
    turns = [{"role": "user", "content": asked["prompt"]}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    clock, n = _Clock(), asked["max_tokens"]
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(**ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, streamer=clock, pad_token_id=0)
    tokens = clock.times[1:]
    return {
        "ttft_s": tokens[0] - started,
        "decode_tps": (len(tokens) - 1) / (tokens[-1] - tokens[0]),
        "n": len(tokens),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
