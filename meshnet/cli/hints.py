"""What to do about an error that a daemon could only state: it does not know its caller's variables and commands."""

from __future__ import annotations

from meshnet.domain.errors import MeshnetError

_ABOUT_KEYS = {
    "unauthorized": "Set MESHNET_API_KEY to a key of this mesh. On the tracker's machine one is made with: "
    "meshnet keys create NAME --scope chat",
    "wrong_scope": "The key in MESHNET_API_KEY is not for this. On the tracker's machine one that is, is made with: "
    "meshnet keys create NAME --scope admin (or read, or chat)",
}


def hint_of(error: MeshnetError) -> str | None:
    return _ABOUT_KEYS.get(error.code)
