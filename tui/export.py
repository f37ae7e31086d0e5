"""What the console hands out as text: the moment looked at, or the last 15 minutes of moments."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from meshnet.wire.status import Snapshot
from tui.model import Shown


def as_json(shown: Shown) -> str:
    """The moment looked at as one JSON object; prompts only where they are shown."""
    snapshot = shown.snapshot
    if not shown.prompts:
        hidden = tuple(msgspec.structs.replace(call, prompt=None) for call in snapshot.calls)
        snapshot = msgspec.structs.replace(snapshot, calls=hidden)
    return msgspec.json.format(msgspec.json.encode({"snapshot": snapshot, "events": shown.events}), indent=2).decode()


def as_json_lines(snapshots: Iterable[Snapshot]) -> str:
    """A snapshot a line, oldest first."""
    return "\n".join(msgspec.json.encode(snapshot).decode() for snapshot in snapshots) + "\n"
