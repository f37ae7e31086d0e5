"""What to do about an error that a daemon could only state: it does not know its caller's variables and commands."""

from __future__ import annotations

from meshnet.domain.errors import MeshnetError, NodeFailed

_ABOUT_KEYS = {
    "unauthorized": "Set MESHNET_API_KEY to a key of this mesh. On the tracker's machine one is made with: "
    "meshnet keys create NAME --scope chat",
    "wrong_scope": "The key in MESHNET_API_KEY is not for this. On the tracker's machine one that is, is made with: "
    "meshnet keys create NAME --scope admin (or read, or chat)",
}


_ABOUT_LOST_NODES = "meshnet status shows which nodes answer. Those of this machine are started again with: meshnet up"
_LOST_NODE = ("unreachable", "link_closed")


def hint_of(error: MeshnetError) -> str | None:
    if isinstance(error, NodeFailed) and error.code in _LOST_NODE:
        return _ABOUT_LOST_NODES
    return _ABOUT_KEYS.get(error.code)
