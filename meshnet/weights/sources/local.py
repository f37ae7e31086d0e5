"""A model that lies on this machine: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshnet.weights.progress import Progress
from meshnet.weights.sources import key_of


@dataclass(frozen=True, slots=True)
class LocalSource:
    """``path`` exists."""

    path: Path

    @property
    def description(self) -> str:
        return f"{'folder' if self.path.is_dir() else 'file'} {self._name}"

    @property
    def default_key(self) -> str:
        return key_of(self._name)

    @property
    def _name(self) -> str:
        return self.path.absolute().name

    def download_bytes(self) -> int:
        return 0

    def fetch(self, downloads: Path, progress: Progress) -> Path:
        return self.path
