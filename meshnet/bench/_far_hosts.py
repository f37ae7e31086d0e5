"""Hosts far from each other on one machine: a network namespace each, and a line that delays every packet.

The line is a process that holds a tun device in each namespace and writes each packet out at its destination one way
later, whatever the direction and whoever sends. Packets are never lost, reordered or slowed by a rate. Needs root,
iproute2 and /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshnet.domain.errors import StartError

TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x0001 | 0x1000
CLONE_NEWNET = 0x40000000
"""Of linux/if_tun.h and linux/sched.h."""
DEVICE = "far0"
PACKET_BYTES = 65_536
NETWORK = "10.80.0.0/24"
DESTINATION = slice(16, 20)
"""Of an IPv4 header."""


def address_of(number: int) -> str:
    """Of the host with this number, from 0."""
    return f"10.80.0.{number + 1}"


@contextlib.contextmanager
def far_hosts(count: int, one_way_s: float) -> Iterator[list[str]]:
    """Names of so many namespaces, host n at ``address_of(n)``. Raises StartError where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        raise StartError("Far hosts need root, iproute2 (apt-get install iproute2) and /dev/net/tun.")
    names = [f"mnfar{os.getpid()}-{number}" for number in range(count)]
    line: subprocess.Popen[str] | None = None
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        line = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(one_way_s), *names], stdout=subprocess.PIPE, text=True
        )
        if line.stdout is None or not line.stdout.readline():
            raise StartError("The delaying line between the hosts did not start; see its error above.")
        yield names
    finally:
        if line is not None:
            line.kill()
            line.communicate()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def enter(name: str) -> None:
    """This thread, and the threads and processes that it starts from now on, are in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{name}").open("rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise StartError(f"Cannot enter namespace {name}: {os.strerror(ctypes.get_errno())}.")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _device(name: str, address: str) -> int:
    """A tun device in the namespace; its file descriptor."""
    enter(name)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), TUN_WITHOUT_HEADER))
    _ip("addr", "add", f"{address}/24", "dev", DEVICE)
    _ip("link", "set", DEVICE, "up")
    return tun


def run_line(one_way_s: float, names: Sequence[str]) -> None:
    """Forever. ``select`` wakes within some 0.1 ms of the time asked for, where an event loop rounds up to 1 ms."""
    ends = {bytes(map(int, address_of(n).split("."))): _device(name, address_of(n)) for n, name in enumerate(names)}
    print("ready", flush=True)
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for tun in select.select(list(ends.values()), [], [], wait_s)[0]:
            packet = os.read(tun, PACKET_BYTES)
            end = ends.get(packet[DESTINATION])
            if end is not None and packet[0] >> 4 == 4:
                under_way.append((time.monotonic() + one_way_s, end, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            os.write(end, packet)


if __name__ == "__main__":
    run_line(float(sys.argv[1]), sys.argv[2:])
