"""A mesh over network namespaces: one public host, and houses from which one can only dial out.

A house's node listens on its own loopback alone and nothing is forwarded between houses, so no packet from outside
finds a port there. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PUBLIC = "10.78.0.1"
"""The public host's address, on its loopback interface, so that every house reaches it by its own line."""
NETWORK = "10.78.0.0/16"
START_S = 120.0
LOOK_S = 0.1

CAPTURE = """
import socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
print("listening", flush=True)
with open(sys.argv[1], "wb", buffering=0) as out:
    while True:
        out.write(tap.recv(1 << 17))
"""
ASK = """
import asyncio, json, os, sys
from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta
from meshnet.client.tracker import TrackerClient

async def main(url, body):
    async with open_http(os.environ["MESHNET_API_KEY"], os.environ["MESHNET_CA_FILE"]) as http:
        async with TrackerClient(http, url).chat(json.loads(body)) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    print(json.dumps(event.text), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Town:
    """The public host and its houses; processes by name, each with a home of its own where its state lies."""

    folder: Path
    models: Path
    tag: str = field(default_factory=lambda: f"mn{os.getpid()}")
    environ: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    houses: list[str] = field(default_factory=list)
    tracker_wallet: str = ""
    bare: set[str] = field(default_factory=set)
    """Hosts without the models that all others share."""

    @property
    def public(self) -> str:
        return f"{self.tag}-pub"

    @property
    def island(self) -> str:
        """A host with nothing but loopback."""
        return f"{self.tag}-alone"

    def build(self, n_houses: int) -> None:
        for place in (self.public, self.island):
            self._ip("netns", "add", place)
            self._ip("-n", place, "link", "set", "lo", "up")
        self._ip("-n", self.public, "addr", "add", f"{PUBLIC}/32", "dev", "lo")
        for number in range(n_houses):
            house = f"{self.tag}-h{number}"
            self._ip("netns", "add", house)
            self.houses.append(house)
            self._ip("-n", house, "link", "set", "lo", "up")
            self._ip("link", "add", f"{self.tag}o{number}", "type", "veth", "peer", "name", f"{self.tag}i{number}")
            for end, place, address in ((f"{self.tag}o{number}", self.public, 1), (f"{self.tag}i{number}", house, 2)):
                self._ip("link", "set", end, "netns", place)
                self._ip("-n", place, "addr", "add", f"10.79.{number}.{address}/30", "dev", end)
                self._ip("-n", place, "link", "set", end, "up")
            self._ip("-n", house, "route", "add", "default", "via", f"10.79.{number}.1")

    def tear_down(self) -> None:
        self.kill(*self.processes)
        for place in (*self.houses, self.public, self.island):
            subprocess.run(["ip", "netns", "del", place], capture_output=True, check=False)

    def kill(self, *names: str) -> None:
        for name in names:
            if self.processes[name].poll() is None:
                self.processes[name].kill()
            self.processes[name].wait()

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def home(self, place: str) -> Path:
        home = self.folder / place
        home.mkdir(exist_ok=True)
        if place not in self.bare and not (home / "models").exists():
            (home / "models").symlink_to(self.models)
        return home

    def meshnet(self, *words: str, place: str = "") -> str:
        """A command on the public host, or at ``place``; its standard output."""
        return self.run(place or self.public, "-m", "meshnet.cli", *words).stdout

    def run(self, place: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["ip", "netns", "exec", place, sys.executable, *words]
        return subprocess.run(
            command, env=self._environ(place), capture_output=True, text=True, check=True, timeout=START_S
        )

    def start(self, place: str, name: str, *words: str, out: Any = None) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self.processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", place, sys.executable, *words],
                env=self._environ(place),
                stdin=subprocess.DEVNULL,
                stdout=out or log,
                stderr=log,
            )
        return self.processes[name]

    def start_daemon(self, place: str, kind: str, name: str, *flags: str) -> None:
        run_file = self.home(place) / "run" / f"{name}.json"
        run_file.unlink(missing_ok=True)
        self.start(place, name, "-m", f"daemons.{kind}", "--name", name, *flags)

    def url(self, place: str, name: str) -> str:
        """Where it listens, once it does."""
        run_file = self.home(place) / "run" / f"{name}.json"
        self.wait(lambda: run_file.exists() or self._is_dead(name))
        return json.loads(run_file.read_bytes())["url"]

    def _is_dead(self, name: str) -> bool:
        if self.processes[name].poll() is not None:
            raise AssertionError(f"{name} ended:\n{self.log(name)}")
        return False

    def log(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text("utf-8", "replace").splitlines()[-15:])

    def _environ(self, place: str) -> dict[str, str]:
        own = {"MESHNET_HOME": str(self.home(place)), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **self.environ, **own}

    def chat(self, url: str, prompt: str, tokens: int, place: str = "") -> str:
        """What ``meshnet chat`` answers, on the public host or at ``place``."""
        words = ("--tracker", url, "--temperature", "0", "--max-tokens", str(tokens), prompt)
        return self.meshnet("chat", *words, place=place).removesuffix("\n")

    def capture(self, place: str, name: str) -> None:
        """From now on, write every packet of every interface there into the file ``name``."""
        process = self.start(place, name, "-c", CAPTURE, str(self.folder / f"{name}.packets"), out=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        process.stdout.close()

    def captured(self, name: str) -> bytes:
        return (self.folder / f"{name}.packets").read_bytes()

    def ask(self, url: str, prompt: str, tokens: int, name: str = "ask") -> subprocess.Popen[bytes]:
        """A chat from the public host; its pieces come on standard output, one JSON string a line."""
        body = {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": tokens,
        }
        return self.start(self.public, name, "-c", ASK, url, json.dumps(body), out=subprocess.PIPE)

    @staticmethod
    def wait(true: Any, within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"not so within {within_s:g} s")
            time.sleep(LOOK_S)


def pieces(process: subprocess.Popen[bytes]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    process.stdout.close()
    assert process.wait(10) == 0


@contextlib.contextmanager
def town(folder: Path, models: Path, n_houses: int) -> Iterator[Town]:
    made = Town(folder, models)
    try:
        made.build(n_houses)
        yield made
    finally:
        made.tear_down()


def flags(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
