"""Programs of the system that a test needs: there, or installed now where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/usr/bin"))
INSTALL_S = 300


def need(program: str, package: str) -> str:
    """The program's path. Installs its Debian package where we are root; skips where that is not possible, but never
    in CI."""
    found = shutil.which(program, path=PATH)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-q", *words], check=False, capture_output=True, timeout=INSTALL_S)
        found = shutil.which(program, path=PATH)
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"{program} is not here and its package {package} cannot be installed")
    pytest.skip(f"needs {program}: apt-get install {package}")


def need_namespaces() -> None:
    """Skips where none can be made; iproute2 is installed where it is only missing."""
    ip = need("ip", "iproute2")
    name = f"mn-try-{os.getpid()}"
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run([ip, "netns", "del", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
