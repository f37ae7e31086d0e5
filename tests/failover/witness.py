"""A node's record of the work it was asked for, kept in a file, so that it outlives a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemons.node.trust import Trust
from meshnet.domain.errors import Forbidden
from meshnet.domain.tickets import Sender
from meshnet.wire.messages import Generate, Hello, HopMessage, Open

ENDING = ".work"
Work = tuple[str, int, str]
"""Call, attempt and the node_id that did a part of it."""


class WitnessingTrust(Trust):
    """Wants a ticket for everything, and writes down whom it admitted and whom it refused."""

    def __init__(self, wall: Callable[[], float], file: Path) -> None:
        super().__init__(wall, required=True)
        self._file = file.open("a", buffering=1, encoding="utf-8")

    def admit(self, ask: Generate | Open, hop: HopMessage, peer: Hello, sender: Sender) -> None:
        try:
            super().admit(ask, hop, peer, sender)
        except Forbidden as error:
            self._file.write(f"refused {ask.call_id} {ask.attempt} {hop.node_id} {error.code} {peer.peer_id}\n")
            raise
        self._file.write(f"admitted {ask.call_id} {ask.attempt} {hop.node_id}\n")


def admitted(folder: Path) -> set[Work]:
    """What all nodes of this home took part in. Raises AssertionError for work that was asked for without leave."""
    found: set[Work] = set()
    for path in folder.glob(f"*{ENDING}"):
        for line in path.read_text("utf-8").splitlines():
            what, call_id, attempt, node_id = line.split()[:4]
            assert what == "admitted", f"{path.name}: {line}"
            found.add((call_id, int(attempt), node_id))
    return found
