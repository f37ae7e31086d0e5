"""A mesh of real processes, to be killed, stopped and started again: a tracker and nodes with the fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from daemons.kit.tasks import Tasks
from meshnet.client.http import open_http
from meshnet.client.sse import TextDelta, UsageReport
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import MeshnetError
from meshnet.wire.messages import NodeMessage
from meshnet.wire.runfile import RunFile
from tests.mesh.fake_engine import expected_text, prompt_ids

START_S = 60.0
"""Until a process must be up: it takes one second on a quiet machine."""
LOOK_S = 0.02
QUICK = ("--timeout-between-tokens", "0.6", "--timeout-first-token", "8", "--spare-wait", "20", "--log-level", "INFO")


@dataclass(slots=True)
class Process:
    name: str
    command: list[str]
    environ: dict[str, str]
    running: asyncio.subprocess.Process

    @property
    def is_dead(self) -> bool:
        return self.running.returncode is not None


@dataclass(slots=True)
class Told:
    """One streamed answer as its client got it."""

    text: str = ""
    pieces: list[str] = field(default_factory=list)
    route: str = ""
    usage: UsageReport | None = None

    def victim(self, position: int) -> str:
        """The node_id of the hop at this position of the first route."""
        return re.findall(r"([\w.-]+)\[", self.route)[position]

    @property
    def tokens(self) -> int:
        return self.text.count(" ")


class Fleet:
    """Use ``open_fleet``. Names are node names."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.processes: dict[str, Process] = {}
        self.client: TrackerClient
        self.url = ""

    # ---- processes

    async def start_tracker(self, *flags: str, port: int = 0) -> str:
        command = ["-m", "daemons.tracker", "--port", str(port), *(flags or QUICK)]
        self.url = await self._start("tracker", command, {})
        return self.url

    async def start_node(self, name: str, shard: str, *flags: str, fail: str = "", wait: bool = True) -> None:
        command = ["-m", "tests.failover.fake_node", "--name", name, "--shard", shard]
        command += ["--tracker", self.url, *flags]
        environ = {"MESHNET_FAIL": fail, "MESHNET_TESTING": "1"} if fail else {}
        await self._start(name, command, environ)
        if wait:
            await self.ready([name])

    async def _start(self, name: str, command: list[str], environ: Mapping[str, str]) -> str:
        (self.home / "run" / f"{name}.json").unlink(missing_ok=True)
        own = {**os.environ, "MESHNET_HOME": str(self.home), **environ}
        with (self.home / f"{name}.log").open("ab") as out:
            process = await asyncio.create_subprocess_exec(sys.executable, *command, env=own, stdout=out, stderr=out)
        self.processes[name] = Process(name, command, dict(environ), process)
        return await self._url_of(name)

    async def _url_of(self, name: str) -> str:
        path = self.home / "run" / f"{name}.json"
        async with asyncio.timeout(START_S):
            while not path.exists():
                assert not self.processes[name].is_dead, self.log(name)
                await asyncio.sleep(LOOK_S)
        return msgspec.json.decode(path.read_bytes(), type=RunFile).url

    async def restart(self, name: str) -> None:
        """The same process again, without what it was ordered to fail at."""
        await self._start(name, self.processes[name].command, {})

    def signal(self, name: str, number: signal.Signals) -> None:
        if not self.processes[name].is_dead:
            self.processes[name].running.send_signal(number)

    async def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        await self.processes[name].running.wait()

    async def retire(self, name: str) -> None:
        """It leaves in good order, so that no lease of a dead process stays for later calls to stumble over."""
        if self.processes[name].is_dead:
            await self.restart(name)
        await self.ready([name])
        self.signal(name, signal.SIGTERM)
        await self.ended(name)

    async def ended(self, name: str) -> int:
        return await asyncio.wait_for(self.processes[name].running.wait(), START_S)

    def log(self, name: str) -> str:
        return "\n".join((self.home / f"{name}.log").read_text("utf-8", "replace").splitlines()[-15:])

    # ---- the mesh

    async def nodes(self) -> dict[str, NodeMessage]:
        return {node.name: node for node in (await self.client.nodes()).nodes}

    async def ready(self, names: Collection[str], within_s: float = START_S) -> dict[str, NodeMessage]:
        """Nodes by name, once these are ready, each as the process that runs now (not the lease of a killed one)."""
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(MeshnetError):
                    nodes = await self.nodes()
                    urls = {name: self.listens_at(name) for name in names}
                    if all(name in nodes and nodes[name].state == "ready" for name in names) and all(
                        nodes[name].url == url or "--advertise" in self.processes[name].command
                        for name, url in urls.items()
                    ):
                        return nodes
                await asyncio.sleep(LOOK_S)

    def listens_at(self, name: str) -> str:
        path = self.home / "run" / f"{name}.json"
        return msgspec.json.decode(path.read_bytes(), type=RunFile).url if path.exists() else ""

    async def name_of(self, node_id: str) -> str:
        return next(name for name, node in (await self.nodes()).items() if node.node_id == node_id)

    async def all_free(self, within_s: float = 10.0) -> None:
        """No session and no KV on any live node, no call running: what was taken was given back."""
        import httpx

        async with asyncio.timeout(within_s), httpx.AsyncClient(trust_env=False) as http:
            for name, process in self.processes.items():
                while name != "tracker" and not process.is_dead:
                    url = self.listens_at(name)
                    if not url:  # It was started a moment ago and does not say yet where it listens.
                        await asyncio.sleep(LOOK_S)
                        continue
                    status = (await http.get(f"{url}/v1/status")).json()
                    if not status["sessions"] and not status["kv_reserved_bytes"]:
                        break
                    await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        for process in self.processes.values():
            if not process.is_dead:
                process.running.kill()
        await asyncio.gather(*(process.running.wait() for process in self.processes.values()))


def question(prompt: str, tokens: int) -> dict[str, object]:
    return {
        "model": "fake",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        # All routes alike, so that a node that a test has prepared is soon met.
        "route_policy": "random",
    }


class Listening:
    """An answer that is read in the background, to act at its n-th token."""

    def __init__(self, client: TrackerClient, prompt: str, tokens: int, tasks: Tasks) -> None:
        self.told = Told()
        self._heard = asyncio.Condition()
        self.done = tasks.start(listen(client, prompt, tokens, self.told, self._heard), "listen", quiet=True)

    async def token(self, number: int, within_s: float = START_S) -> Told:
        """What came once it is at least so many tokens."""
        async with asyncio.timeout(within_s), self._heard:
            await self._heard.wait_for(lambda: self.told.tokens >= number)
        return self.told

    async def end(self, within_s: float = START_S) -> Told:
        return await asyncio.wait_for(self.done, within_s)


async def listen(
    client: TrackerClient, prompt: str, tokens: int, told: Told | None = None, heard: asyncio.Condition | None = None
) -> Told:
    """Ask and read to the end. ``heard`` is notified at each piece. Raises what the stream ends with."""
    told = told or Told()
    async with client.chat(question(prompt, tokens)) as stream:
        told.route = stream.route
        async for event in stream:
            if isinstance(event, TextDelta) and event.text:
                told.text += event.text
                told.pieces.append(event.text)
                if heard is not None:
                    async with heard:
                        heard.notify_all()
            elif isinstance(event, UsageReport):
                told.usage = event
    return told


def whole(prompt: str, tokens: int) -> str:
    """The unbroken run."""
    return expected_text(prompt_ids(prompt), tokens)


@contextlib.asynccontextmanager
async def open_fleet(home: Path, *flags: str) -> AsyncIterator[Fleet]:
    """A tracker with these flags, and nothing else yet; whatever is started is killed at the end."""
    fleet = Fleet(home)
    async with open_http() as http:
        try:
            await fleet.start_tracker(*flags)
            fleet.client = TrackerClient(http, fleet.url)
            yield fleet
        finally:
            await fleet.close()
