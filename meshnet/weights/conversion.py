"""Work that needs torch, done by a child process: ``python -m meshnet.engine``.

The parent stays light, and a child that runs out of memory takes nothing with it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec

from meshnet.domain.errors import WeightsError
from meshnet.weights.progress import Progress, silent

STOP_WAIT_S = 5.0
"""From SIGTERM to SIGKILL for a child whose parent gave up: it holds no state worth more."""


class Conversion(Protocol):
    """What pulls ask of the engine."""

    def convert_gguf(self, file: Path, target: Path, model_key: str, source: str, progress: Progress) -> None:
        """A GGUF file -> a whole model, manifest included, in the empty folder ``target``. Raises WeightsError."""
        ...

    def save_tokenizer(self, folder: Path, target: Path) -> None:
        """Older tokenizer files of ``folder`` -> tokenizer.json and its companions in ``target``."""
        ...


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: str = "weights"


class _Line(msgspec.Struct, frozen=True):
    """One line of the child's standard output."""

    step: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    ok: bool = False
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """``environ`` is the child's environment; ``program`` is how it is started."""

    environ: Mapping[str, str]
    program: tuple[str, ...] = (sys.executable, "-m", "meshnet.engine")

    def convert_gguf(self, file: Path, target: Path, model_key: str, source: str, progress: Progress) -> None:
        words = ["convert", str(file), str(target), "--model-key", model_key, "--source", source]
        self._run(words, progress)

    def save_tokenizer(self, folder: Path, target: Path) -> None:
        self._run(["tokenizer", str(folder), str(target)], silent)

    def _run(self, words: Sequence[str], progress: Progress) -> None:
        # A conversion needs no network, and must not ask for one.
        environ = {**self.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with tempfile.TemporaryFile() as complaints:
            child = subprocess.Popen(
                [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environ,
            )
            try:
                assert child.stdout is not None
                is_done = _follow(child.stdout, progress)
                status = child.wait()
            finally:
                _stop(child)
            if not is_done or status != 0:
                raise WeightsError(f"The conversion ended without a result: {_cause(status, complaints)}")


def _follow(lines: IO[bytes], progress: Progress) -> bool:
    """Report the child's lines until it ends. True if it said it is done. Raises the error it reported."""
    is_done = False
    for raw in lines:
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except msgspec.DecodeError:
            continue  # A library that prints to standard output is no reason to fail.
        if line.error is not None:
            raise WeightsError(line.error.message, code=line.error.code)
        if line.ok:
            is_done = True
        elif line.step:
            progress(line.step, line.done_bytes, line.total_bytes)
    return is_done


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.stdout is not None:
        child.stdout.close()
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _cause(status: int, complaints: IO[bytes]) -> str:
    if status == -9:
        return "the system killed it, most likely for lack of memory."
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {status}."
