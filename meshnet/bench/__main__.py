"""``python -m meshnet.bench NAME …``: one benchmark a module, imported only when asked for."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import meshnet.bench as bench
from meshnet.domain.errors import MeshnetError

PARTS = {"processes", "report", "baseline", "__main__"}
"""Modules that are no benchmark themselves."""


def names() -> list[str]:
    """Every benchmark there is: the modules of this package with a ``main``."""
    found = (module.name for module in pkgutil.iter_modules(bench.__path__))
    return sorted(name for name in found if name not in PARTS and not name.startswith(("simulat", "_")))


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help") or argv[0] not in names():
        print(f"usage: meshnet bench {{{','.join(names())}}} [--json] …", file=sys.stderr)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    try:
        return int(importlib.import_module(f"meshnet.bench.{argv[0]}").main(argv[1:]) or 0)
    except MeshnetError as error:
        print(error.message.splitlines()[-1], file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
