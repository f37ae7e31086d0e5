"""A real sshd on loopback with keys of its own: one may do anything, one gives the console and nothing else."""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tui.debian import need

LISTENS_S = 20


@dataclass
class Server:
    """One sshd of this test's own keys; ``key`` may do anything, ``forced`` gives the console only."""

    port: int
    key: Path
    forced: Path

    def ssh(self, key: Path, *words: str, tty: bool = True, environ: str = "") -> list[str]:
        options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-q"]
        options += ["-o", "IdentitiesOnly=yes", "-i", str(key), "-p", str(self.port)]
        return ["ssh", *options, *(["-tt"] if tty else []), f"{getpass.getuser()}@127.0.0.1", environ, *words]

    def forward(self, key: Path) -> list[str]:
        """Ask for a port of the server and nothing else."""
        words = self.ssh(key, tty=False)
        options = ["-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1"]
        return ["ssh", *words[1:-2], *options, words[-2]]


@contextmanager
def sshd(folder: Path, forced: str) -> Iterator[Server]:
    """Runs until the block ends. ``forced`` is the command line of the second key, whatever is asked for."""
    program, _ = need("sshd", "openssh-server"), need("ssh", "openssh-client")
    for name in ("host", "key", "forced"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    keys = [
        (folder / "key.pub").read_text(),
        f'restrict,pty,command="{forced}" ' + (folder / "forced.pub").read_text(),
    ]
    (folder / "authorized_keys").write_text("".join(keys))
    port = _free_port()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        "PrintMotd no\nPrintLastLog no\nSubsystem sftp internal-sftp\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LISTENS_S
        while time.monotonic() < until and not _answers(port):
            time.sleep(0.05)  # Nothing says when sshd listens; asking it is the only way.
        yield Server(port, folder / "key", folder / "forced")
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0
