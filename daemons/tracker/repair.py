"""``python -m daemons.tracker.repair PATH``: set a damaged statistics file aside. A sound one is left alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from daemons.tracker.store import check

EXIT_NOTHING_WRONG, EXIT_FAILED = 0, 1


def main(argv: list[str] | None = None) -> int:
    """One line on what was found and done."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1:
        print("usage: python -m daemons.tracker.repair PATH", file=sys.stderr)
        return EXIT_FAILED
    path = Path(words[0]).expanduser()
    wrong = check(path)
    if not wrong:
        print(f"{path} is sound." if path.exists() else f"There is no {path}.")
        return EXIT_NOTHING_WRONG
    if "is damaged" not in wrong:
        print(wrong, file=sys.stderr)
        return EXIT_FAILED
    try:
        moved = set_aside(path, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    except OSError as error:
        print(f"Cannot set {path} aside: {error.strerror}.", file=sys.stderr)
        return EXIT_FAILED
    print(f"{path} is damaged; it lies now at {moved}, and the next start makes a new one.")
    return EXIT_NOTHING_WRONG


def set_aside(path: Path, stamp: str) -> Path:
    """Rename the file and its write-ahead log; nothing is deleted. Returns where it lies now."""
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(target.with_name(target.name + suffix))
    return target


if __name__ == "__main__":
    sys.exit(main())
