"""How long work reports itself: a callback the caller hands down, so that nothing here knows of terminals."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def __call__(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        """``name`` is the step (``converting``); bytes count up from 0 in each; total None while unknown."""
        ...


def silent(name: str, done_bytes: int, total_bytes: int | None) -> None:
    """For callers that show nothing."""
