"""A whole mesh from its description: what runs is kept, what is dead is started again, the rest is started new.

Steps in order: look, refuse what cannot work (ports, torch), fetch models, tracker, relay, nodes, coverage.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from rich.console import Console

from meshnet.cli import launch, ports, processes, readiness
from meshnet.cli.board import Board
from meshnet.cli.connect import as_url, ask
from meshnet.cli.home import Home
from meshnet.cli.launch import DaemonSpec, Started
from meshnet.cli.meshfile import MeshFile
from meshnet.cli.readiness import Sight, Watched
from meshnet.domain.errors import MeshnetError, NotFound, StartError, Unreachable
from meshnet.weights.store import Store
from meshnet.wire.runfile import RunFile

PORT_HINT = "choose another by --port or in meshnet.toml (0 takes a free one)."


@dataclass(slots=True)
class Report:
    """What became of an ``up``. ``missing`` says why the mesh cannot answer yet; "" when it can."""

    tracker_url: str = ""
    sights: list[Sight] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    started: dict[str, Started] = field(default_factory=dict)
    missing: str = ""

    @property
    def failures(self) -> list[Sight]:
        return [sight for sight in self.sights if sight.phase != "ready"]

    @property
    def is_up(self) -> bool:
        return not self.failures and not self.missing


class BringUp:
    """One ``up`` in one home. ``environ`` is what daemons inherit."""

    def __init__(self, home: Home, environ: Mapping[str, str], console: Console, timeout_s: float) -> None:
        self._home = home
        self._environ = environ
        self._console = console
        self._timeout_s = timeout_s
        self._report = Report()

    def mesh(self, mesh: MeshFile) -> Report:
        """Start everything the mesh file asks for. Raises MeshnetError when nothing can be started."""
        tracker = [daemon_spec("tracker", mesh.tracker)] if mesh.tracker is not None else []
        relay = [daemon_spec("relay", mesh.relay)] if mesh.relay is not None else []
        nodes = [daemon_spec("node", node) for node in share_threads(mesh.nodes, cores())]
        waiting = self._triage([*tracker, *relay, *nodes])
        self._check(waiting)
        self._pull(spec for spec in nodes if spec in waiting)
        self._raise(tracker)
        if self._report.failures:
            return self._report
        url = self._tracker_url(mesh)
        self._raise([replace(spec, settings=_with_trackers(spec.settings, url)) for spec in relay])
        if self._report.failures:
            return self._report
        self._raise([replace(spec, settings={"tracker": url, **spec.settings}) for spec in nodes])
        for model in mesh.models if self._answers(nodes) else ():
            self._report.missing = self._report.missing or asyncio.run(
                readiness.wait_until_covered(url, model, self._timeout_s)
            )
        return self._report

    def one(self, spec: DaemonSpec) -> Report:
        """Start one daemon. Raises Unreachable for a node whose tracker does not answer."""
        if spec.kind == "node":
            check_tracker(str(spec.settings["tracker"]))
        self._check(self._triage([spec]))
        self._pull(_with_given_layers([spec]))
        self._raise([spec])
        return self._report

    def prepared(self, spec: DaemonSpec) -> DaemonSpec:
        """A daemon to be run in the foreground, checked as one to be started. Raises StartError if it runs."""
        if not self._triage([spec]):
            raise StartError(f"{spec.name} already runs. Stop it with: meshnet down {spec.name}")
        self._check([spec])
        self._pull(_with_given_layers([spec]))
        return self._with_port(spec)

    def _triage(self, specs: Sequence[DaemonSpec]) -> list[DaemonSpec]:
        """Those that must be started; the others run and are kept."""
        dead = []
        for spec in specs:
            record = self._home.record(spec.name)
            if record is not None and processes.is_running(record):
                if record.kind != spec.kind:
                    raise StartError(f"{spec.name!r} is a running {record.kind}; give the {spec.kind} another name.")
                self._report.kept.append(spec.name)
                continue
            if record is not None:
                self._console.print(f"{spec.name} died (it was pid {record.pid}); starting it again.")
            dead.append(spec)
        return dead

    def _check(self, specs: Sequence[DaemonSpec]) -> None:
        has_torch = importlib.util.find_spec("torch") is not None
        for spec in specs:
            launch.check_torch(spec, has_torch)
            launch.check_door(self._home, spec)
            try:
                ports.check_free(spec.host, self._with_port(spec).port, PORT_HINT)
            except StartError as error:
                raise StartError(f"{spec.name}: {error.message}") from None

    def _pull(self, specs: Iterable[DaemonSpec]) -> None:
        store = Store(self._home.models)
        wanted = dict.fromkeys(spec.settings.get("model") for spec in specs if spec.kind == "node")
        for model in filter(None, wanted):
            try:
                store.open(model)
            except NotFound:
                self._console.print(f"Fetching {model} (once)")
                pull(model, self._environ)

    def _raise(self, specs: Sequence[DaemonSpec]) -> None:
        watched = []
        for spec in specs:
            if spec.name in self._report.kept:
                watched.append(Watched(spec))
                continue
            started = launch.start(self._home, self._with_port(spec), self._environ)
            self._report.started[spec.name] = started
            watched.append(Watched(spec, started))
        if not watched:
            return
        with Board(self._console) as board:
            sights = asyncio.run(readiness.wait_until_ready(self._home, watched, self._timeout_s, board.tell))
        self._report.sights += sights
        for sight in sights:
            record = self._home.record(sight.name)
            if sight.phase == "failed" and record is not None and not processes.is_running(record):
                processes.forget(self._home, record)

    def _with_port(self, spec: DaemonSpec) -> DaemonSpec:
        """A daemon that died comes back at its old address, where peers still look for it; else the home's default."""
        if spec.kind == "relay" and not self._home.is_default and not spec.settings.get("config"):
            spec = replace(spec, settings={"splice_port": 0, **spec.settings})  # Two homes must not meet here.
        if spec.settings.get("port") is not None:
            return spec
        port = launch.default_port(self._home, spec.kind, spec.name) or self._last_port(spec)
        return replace(spec, settings={**spec.settings, "port": port})

    def _last_port(self, spec: DaemonSpec) -> int:
        record = self._home.record(spec.name)
        port = port_of(record) if record is not None else 0
        try:
            ports.check_free(spec.host, port, "")
        except StartError:
            return 0
        return port

    def _tracker_url(self, mesh: MeshFile) -> str:
        if mesh.tracker_url is not None:
            self._report.tracker_url = as_url(mesh.tracker_url)
            check_tracker(self._report.tracker_url)
        else:
            self._report.tracker_url = self._report.sights[0].url
        return self._report.tracker_url

    def _answers(self, nodes: Sequence[DaemonSpec]) -> bool:
        names = {spec.name for spec in nodes}
        return any(sight.name in names and sight.phase == "ready" for sight in self._report.sights)


def _with_given_layers(specs: Iterable[DaemonSpec]) -> list[DaemonSpec]:
    """A node whose layers the tracker assigns fetches those, and only those, from the mesh."""
    return [spec for spec in specs if spec.settings.get("shard")]


def _with_trackers(relay: Mapping[str, object], tracker_url: str) -> dict[str, object]:
    """A relay that does not say whose tickets it takes takes those of this mesh's tracker."""
    if relay.get("trackers"):
        return dict(relay)
    return {**relay, "trackers": ask(tracker_url, lambda client: client.health()).wallet}


def check_tracker(url: str) -> None:
    """A node can do nothing without its tracker, so that is said before it loads for a minute. Raises Unreachable."""
    try:
        ask(url, lambda client: client.health())
    except Unreachable as error:
        raise Unreachable(
            f"No tracker answers at {url}. Check the address, and that a tracker runs there (meshnet up tracker).",
            code=error.code,
        ) from None


def daemon_spec(kind: launch.Kind, settings: Mapping[str, object]) -> DaemonSpec:
    return DaemonSpec(kind, str(settings["name"]), {key: value for key, value in settings.items() if key != "name"})


def share_threads(nodes: Sequence[Mapping[str, object]], n_cores: int) -> list[dict[str, object]]:
    """Nodes of one machine share its cores: each that does not say gets an equal part, at least one."""
    part = max(1, n_cores // max(1, len(nodes)))
    return [{"threads": part, **node} for node in nodes]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def port_of(record: RunFile) -> int:
    try:
        return urlsplit(record.url).port or 0
    except ValueError:
        return 0


def pull(model: str, environ: Mapping[str, str]) -> None:
    """Fetch a model by our own command in a child: its progress and errors are the terminal's."""
    words = [sys.executable, "-P", "-m", "meshnet.cli", "models", "pull", model]
    code = subprocess.run(words, env=dict(environ), check=False).returncode
    if code:
        raise MeshnetError(f"{model} could not be fetched, so nothing was started.", code="pull_failed")
