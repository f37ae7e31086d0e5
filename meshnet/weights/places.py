"""Where meshnet keeps its files: one root, overridable, so that two homes make two meshes that never meet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs

HOME_VARIABLE = "MESHNET_HOME"
"""Set, it is the one root of store, state, wallets, pid files and logs; unset, platformdirs says where."""


def state_root(environ: Mapping[str, str]) -> Path:
    """The root of everything a mesh remembers. ``environ`` is the process environment, handed in."""
    home = environ.get(HOME_VARIABLE, "").strip()
    if home:
        return Path(home).expanduser().absolute()
    return platformdirs.user_state_path("meshnet", appauthor=False)


def store_root(environ: Mapping[str, str]) -> Path:
    """Where models lie, one folder each: ``$MESHNET_HOME/models``, or the user's data folder."""
    if environ.get(HOME_VARIABLE, "").strip():
        return state_root(environ) / "models"
    return platformdirs.user_data_path("meshnet", appauthor=False) / "models"
