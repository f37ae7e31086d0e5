"""``python -m meshnet.engine``: the door to work that needs torch, for programs that do not import it.

    convert FILE.gguf TARGET --model-key KEY --source TEXT     GGUF -> a model folder
    tokenizer FOLDER TARGET                                    older tokenizer files -> tokenizer.json

Standard output is JSON lines: ``{"step", "done_bytes", "total_bytes"}`` while it works, then ``{"ok": true}`` or
``{"error": {"message", "code"}}``. Exit code 0 or 1. The reader going away ends the work at the next line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from meshnet.domain.errors import MeshnetError

REPORT_INTERVAL_S = 0.1
"""Between two progress lines: ten a second look smooth and cost nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        arguments.work(arguments)
    except MeshnetError as error:
        _say({"error": {"message": error.message, "code": error.code}})
        return 1
    except BrokenPipeError:
        return 1
    except OSError as error:
        _say({"error": {"message": f"{error.filename or ''}: {error.strerror}".lstrip(": "), "code": "weights"}})
        return 1
    except ImportError as error:
        _say({"error": {"message": f"{error}. Install it with: pip install 'meshnet-llm[node]'", "code": "weights"}})
        return 1
    _say({"ok": True})
    return 0


def _convert(arguments: argparse.Namespace) -> None:
    # Imported here: torch takes seconds, and --help or a wrong word should not.
    from meshnet.engine.convert import convert_gguf

    progress = _Reporter(time.monotonic)
    convert_gguf(arguments.file, arguments.target, arguments.model_key, arguments.source, progress)


def _tokenizer(arguments: argparse.Namespace) -> None:
    from meshnet.engine.convert import save_tokenizer

    save_tokenizer(arguments.folder, arguments.target)


class _Reporter:
    """Progress as JSON lines, no more often than people can read, but always the last of a step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._step, self._said_at = clock, "", 0.0

    def __call__(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        now = self._clock()
        if name == self._step and done_bytes != total_bytes and now - self._said_at < REPORT_INTERVAL_S:
            return
        self._step, self._said_at = name, now
        _say({"step": name, "done_bytes": done_bytes, "total_bytes": total_bytes})


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m meshnet.engine", description="Work that needs torch.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    convert = commands.add_parser("convert", help="GGUF file -> model folder")
    convert.add_argument("file", type=Path)
    convert.add_argument("target", type=Path, help="an existing, empty folder")
    convert.add_argument("--model-key", required=True)
    convert.add_argument("--source", required=True)
    convert.set_defaults(work=_convert)
    tokenizer = commands.add_parser("tokenizer", help="older tokenizer files -> tokenizer.json")
    tokenizer.add_argument("folder", type=Path)
    tokenizer.add_argument("target", type=Path)
    tokenizer.set_defaults(work=_tokenizer)
    return parser


if __name__ == "__main__":
    sys.exit(main())
