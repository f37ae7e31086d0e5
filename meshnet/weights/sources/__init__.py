"""Where models come from. Every source ends in something local: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from meshnet.weights.progress import Progress


class Source(Protocol):
    """One model that can be fetched."""

    @property
    def description(self) -> str:
        """For the manifest: enough to tell two sources apart, and no path of this machine."""
        ...

    @property
    def default_key(self) -> str:
        """The model's name in the store unless the user gives one."""
        ...

    def download_bytes(self) -> int:
        """What ``fetch`` will put on this disk; 0 for what is here already."""
        ...

    def fetch(self, downloads: Path, progress: Progress) -> Path:
        """A folder or a GGUF file, possibly below ``downloads`` (kept from an interrupted fetch, so that it can go
        on). Raises WeightsError; with code ``download`` what came so far is worth keeping."""
        ...


def key_of(text: str) -> str:
    """A model name made of a file, folder or repository name: ``SmolLM2 135M.gguf`` -> ``smollm2-135m``."""
    lowered = text.lower().removesuffix(".gguf")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in lowered)
    return kept.strip("._-")[:96].rstrip("._-")
