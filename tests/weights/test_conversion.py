from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshnet.domain.errors import WeightsError
from meshnet.weights.conversion import EngineProcess
from meshnet.weights.progress import silent


def engine(tmp_path: Path, script: str) -> EngineProcess:
    """An engine whose program is ``script``."""
    file = tmp_path / "engine.py"
    file.write_text(script)
    return EngineProcess(os.environ, (sys.executable, str(file)))


def run(conversion: EngineProcess, tmp_path: Path, progress: object = silent) -> None:
    conversion.convert_gguf(tmp_path / "m.gguf", tmp_path, "tiny", "file m", progress)  # type: ignore[arg-type]


def test_progress_lines_reach_the_caller(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    script = (
        'print(\'{"step": "converting", "done_bytes": 1, "total_bytes": 9}\', flush=True)\n'
        "print('noise of a library', flush=True)\n"
        "print('{\"ok\": true}')"
    )
    run(engine(tmp_path, script), tmp_path, lambda *line: seen.append(line))
    assert seen == [("converting", 1, 9)]


def test_the_childs_error_is_ours(tmp_path: Path) -> None:
    script = 'print(\'{"error": {"message": "m.gguf is bad", "code": "unsupported_model"}}\'); raise SystemExit(1)'
    with pytest.raises(WeightsError, match=r"m\.gguf is bad") as caught:
        run(engine(tmp_path, script), tmp_path)
    assert caught.value.code == "unsupported_model"


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("raise ValueError('odd vocabulary')", "ValueError: odd vocabulary"),
        ("import os; os.kill(os.getpid(), 9)", "lack of memory"),
        ("raise SystemExit(7)", "exit code 7"),
        ("", "exit code 0"),
        ("print('{\"ok\": true}', flush=True); raise SystemExit(3)", "exit code 3"),
    ],
)
def test_a_child_that_ends_without_a_result_is_an_error(tmp_path: Path, script: str, word: str) -> None:
    with pytest.raises(WeightsError, match=word):
        run(engine(tmp_path, script), tmp_path)


def test_a_caller_that_gives_up_takes_the_child_along(tmp_path: Path) -> None:
    script = (
        f"import os, signal, pathlib; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        'print(\'{"step": "converting"}\', flush=True); signal.pause()'
    )

    def give_up(name: str, done_bytes: int, total_bytes: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(engine(tmp_path, script), tmp_path, give_up)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_real_child_reports_a_bad_file_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="cut short or damaged"):
        run(EngineProcess(os.environ), tmp_path)
