"""Every route of every daemon and what it needs (``domain.keys.Need``). What is not listed here is refused to everyone
without an admin key; a test walks the daemons' routes and fails on a new one."""

from __future__ import annotations

from typing import Final

from meshnet.domain.keys import Need
from meshnet.wire import api, relay

TRACKER: Final[dict[tuple[str, str], Need]] = {
    ("POST", api.NODES): "join",
    ("GET", api.NODES): "read",
    ("DELETE", api.NODE): "lease",
    ("POST", api.HEARTBEAT): "lease",
    ("POST", api.ASSIGNMENTS): "join",
    ("GET", api.MODELS): "models",
    ("GET", api.MODEL): "models",
    ("GET", api.MODEL_FILE): "join",
    ("GET", api.COVERAGE): "read",
    ("GET", api.ROUTING): "read",
    ("POST", api.EXPLAIN): "read",
    ("GET", api.STATS): "read",
    ("POST", api.GOSSIP): "peer",
    ("GET", api.USAGE): "read",
    ("GET", api.CALLS): "read",
    ("GET", api.CALL): "read",
    ("GET", api.EVENTS): "read",
    ("POST", api.CHAT): "chat",
    ("GET", api.HEALTH): "public",
    ("GET", api.HEALTH_ALIAS): "public",
    ("GET", api.READY): "public",
    ("GET", api.METRICS): "read",
}
NODE: Final[dict[tuple[str, str], Need]] = {
    ("GET", api.LINK): "link",
    ("POST", api.FORWARD): "forward",
    ("GET", api.STATUS): "read",
    ("GET", api.MODEL_FILE): "files",
    ("GET", api.HEALTH): "public",
    ("GET", api.HEALTH_ALIAS): "public",
    ("GET", api.METRICS): "read",
}
RELAY: Final[dict[tuple[str, str], Need]] = {
    ("GET", relay.CONTROL): "link",
    ("GET", relay.RELAYS): "read",
    ("GET", api.HEALTH): "public",
    ("GET", api.METRICS): "read",
}


def need_of(table: dict[tuple[str, str], Need], method: str, path: str | None) -> Need:
    """The need of a matched route; ``path`` is None for what matches none. HEAD is GET without a body."""
    return table.get(("GET" if method == "HEAD" else method, path or ""), "admin")
