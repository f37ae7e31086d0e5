"""``meshnet up``: the whole mesh, or one daemon of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshnet.cli import exits, launch, lock, processes, readiness
from meshnet.cli.bringup import BringUp, Report, cores
from meshnet.cli.connect import ask, find_tracker
from meshnet.cli.home import Home, home_of
from meshnet.cli.launch import DaemonSpec, run_in_foreground
from meshnet.cli.meshfile import DEFAULT_FILE, find_mesh, is_there
from meshnet.cli.names import name_node
from meshnet.cli.terminal import complain, console, error_console, visible
from meshnet.domain.budget import parse_size
from meshnet.domain.errors import InvalidRequest
from meshnet.domain.routing import MAX_ALPHA, MAX_HALF_LIFE_S, POLICY_NAMES, RoutingConfig
from meshnet.domain.shards import parse_shard
from meshnet.wire.relay import RELAY_SCHEMES

app = typer.Typer(rich_markup_mode=None)

DEFAULT_TIMEOUT_S = 180.0
"""Loading and measuring a large shard takes a minute or two on a slow disk; a mesh that needs more gets --timeout."""

Foreground = Annotated[bool, typer.Option("--foreground", help="Run it here instead of detached; Ctrl-C stops it.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for readiness.")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Who may come in: local (default), lan (keys), exposed (keys and TLS).")
]
TlsCertificate = Annotated[Path | None, typer.Option(help="PEM file; with --tls-key the door speaks TLS.")]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file.")]
AllowCidrs = Annotated[str | None, typer.Option(help="Private networks of an exposed mesh's nodes, by commas.")]
Name = Annotated[str | None, typer.Option("--name", help="What this daemon is called here: its log, wallet, run file.")]


@app.callback(invoke_without_command=True)
def up(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="The mesh to start. Default: ./meshnet.toml, else the demo mesh.")
    ] = None,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Start the mesh of ./meshnet.toml, or the demo mesh: a tracker and three nodes of a small real model.

    Daemons run detached; logs lie under the state folder. Run it again at any time: what runs is kept, what died is
    started again.

    \b
    Examples:
      meshnet up                          the mesh of ./meshnet.toml, or the demo mesh
      meshnet up --config lab.toml
      meshnet up tracker --port 7070      only a tracker
      meshnet up node --model smollm2-135m --shard 0-14 --tracker http://10.0.0.5:7070
    """
    if context.invoked_subcommand is not None:
        return
    mesh = find_mesh(config, Path.cwd())
    report = _locked(timeout_s, lambda bring_up: bring_up.mesh(mesh))
    raise typer.Exit(_tell(home_of(os.environ), report, whole=True))


@app.command()
def tracker(
    name: Name = None,
    host: Host = None,
    port: Port = None,
    profile: Profile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    trusted_proxy: Annotated[str | None, typer.Option(help="Addresses of proxies that end TLS, by commas.")] = None,
    public_names: Annotated[str | None, typer.Option(help="Host names that clients use, by commas.")] = None,
    join_allow: Annotated[str | None, typer.Option(help="Wallets that join without a token, by commas.")] = None,
    allow_cidrs: AllowCidrs = None,
    trusted_nodes: Annotated[
        str | None, typer.Option(help="Wallets of the only nodes that routes may use, by commas: they read prompts.")
    ] = None,
    relays: Annotated[
        str | None, typer.Option(help="Relays told to nodes that nobody can dial: ws://host:7090, by commas.")
    ] = None,
    stats_db: Annotated[str | None, typer.Option(help="Where demand and calls are kept (SQLite).")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Another tracker to share demand with (repeatable).")] = None,
    route_policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"How routes are chosen: {', '.join(POLICY_NAMES)}. Default: adr."),
    ] = None,
    route_explore_share: Annotated[
        float | None,
        typer.Option(
            help="0 to 1, share of requests that scout unproven routes. Default: 0.3; lower it to 0.05-0.1 once real "
            "traffic comes."
        ),
    ] = None,
    route_weight_alpha: Annotated[
        float | None,
        typer.Option(
            help=f"0 to {MAX_ALPHA:g}: exploit traffic goes as tps^alpha. Default: 1; raise it once real traffic comes."
        ),
    ] = None,
    route_stats_half_life: Annotated[
        float | None,
        typer.Option(help=f"1 to {MAX_HALF_LIFE_S:g} seconds until a sample counts half. Default: 600."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with a [tracker] table.")] = None,
    foreground: Foreground = False,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Start a tracker: it knows the nodes, plans routes and answers OpenAI clients."""
    check_routing(
        policy=route_policy,
        explore_share=route_explore_share,
        weight_alpha=route_weight_alpha,
        stats_half_life_s=route_stats_half_life,
    )
    settings = _given(
        host=host,
        port=port,
        profile=profile,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        trusted_proxy=trusted_proxy,
        public_names=public_names,
        join_allow=join_allow,
        allow_cidrs=allow_cidrs,
        trusted_nodes=trusted_nodes,
        relays=relays,
        stats_db=stats_db,
        peer=peer,
        route_policy=route_policy,
        route_explore_share=route_explore_share,
        route_weight_alpha=route_weight_alpha,
        route_stats_half_life=route_stats_half_life,
        config=config,
    )
    _one(DaemonSpec("tracker", name or "tracker", settings), settings, foreground, timeout_s)


@app.command()
def node(
    model: Annotated[
        str | None, typer.Option(help="Short name of the model. Default: the one that needs help.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Layers to hold, inclusive: 0-14. Default: what the tracker assigns.")
    ] = None,
    tracker: Annotated[
        str | None, typer.Option(help="The tracker to join. Default: MESHNET_TRACKER, else this home's.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="All the memory to use, like 8GB. Default: 0.8 of what is available.")
    ] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="Keep KV ready for so many chats (default 4) ...")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="... of so many tokens each (default 4096).")] = None,
    name: Name = None,
    host: Host = None,
    port: Port = None,
    profile: Profile = None,
    relay: Annotated[
        list[str] | None, typer.Option(help="A relay to be reached through, ws://host:7090 (repeatable).")
    ] = None,
    payout: Annotated[str | None, typer.Option(help="Wallet to be paid for this node's work, one day.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Your own CA's certificate: meshnet ca init made it.")] = None,
    allow_cidrs: AllowCidrs = None,
    advertise_url: Annotated[str | None, typer.Option(help="Address that others reach this node at.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default), bfloat16 or float16.")] = None,
    kv_budget: Annotated[str | None, typer.Option(help="Memory for sessions' KV caches, like 512MB.")] = None,
    delay_per_layer_ms: Annotated[
        float | None, typer.Option(help="For development: makes the node slower by this much a layer and step.")
    ] = None,
    rebalance: Annotated[bool, typer.Option("--rebalance", help="Move to other layers when the tracker asks.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with a [node] table.")] = None,
    foreground: Foreground = False,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Start a node: it holds some layers of one model and joins a tracker.

    Without --shard the tracker chooses the layers that help the mesh most and fit the memory; what this machine lacks
    of them is fetched from the mesh.
    """
    check_shard(shard)
    check_model_of(shard, model, config)
    check_size("--memory", memory)
    check_size("--kv-budget", kv_budget)
    check_relays(relay or ())
    said = _given(
        model=model,
        shard=shard,
        tracker=tracker,
        memory=memory,
        sessions=sessions,
        context=context,
        host=host,
        port=port,
        profile=profile,
        relay=",".join(relay or ()) or None,
        payout=payout,
        ca_file=ca_file,
        allow_cidrs=allow_cidrs,
        advertise_url=advertise_url,
        threads=threads,
        dtype=dtype,
        kv_budget=kv_budget,
        delay_per_layer_ms=delay_per_layer_ms,
        rebalance=rebalance or None,
        config=config,
    )
    settings = {
        **said,
        "tracker": find_tracker(tracker, os.environ, Path.cwd()),
        "threads": threads or cores(),
    }
    if name is None:
        name = name_node(home_of(os.environ), said, _names_of_meshfile(Path.cwd()))
    _one(DaemonSpec("node", name, settings), said, foreground, timeout_s)


@app.command()
def relay(
    name: Name = None,
    host: Host = None,
    port: Port = None,
    splice_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the links; 0: a free one.")] = None,
    trackers: Annotated[
        str | None, typer.Option(help="Wallets of trackers whose tickets open links, by commas.")
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with a [relay] table.")] = None,
    foreground: Foreground = False,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Start a relay: nodes behind NAT are reached through it."""
    said = _given(
        host=host,
        port=port,
        splice_port=splice_port,
        trackers=trackers,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        config=config,
    )
    settings = said | _given(trackers=trackers or own_trackers(home_of(os.environ)))
    _one(DaemonSpec("relay", name or "relay", settings), said, foreground, timeout_s)


def check_routing(**knobs: Any) -> None:
    """Before a process is started that would refuse them. Raises StartError naming the knob and its range."""
    RoutingConfig(**{name: value for name, value in knobs.items() if value is not None})


def check_shard(text: str | None) -> None:
    """Before a process is started that would refuse it. Raises BadParameter (exit code 2)."""
    if text is None:
        return
    try:
        parse_shard(text)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message, param_hint="'--shard'") from None


def check_model_of(shard: str | None, model: str | None, config: Path | None) -> None:
    """The same for layers of no model."""
    if shard and not model and not config and not os.environ.get("MESHNET_MODEL", "").strip():
        raise typer.BadParameter(
            f"Layers {shard} of which model? Give --model too, or neither.", param_hint="'--shard'"
        )


def check_size(flag: str, text: str | None) -> None:
    """The same for memory."""
    if text is None:
        return
    try:
        parse_size(text)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message, param_hint=f"'{flag}'") from None


def check_relays(urls: Sequence[str]) -> None:
    """The same for relays."""
    for url in urls:
        if not url.startswith(RELAY_SCHEMES):
            raise typer.BadParameter(
                f"{url!r} is no relay's address: it begins with ws:// or wss://.", param_hint="'--relay'"
            )


def _names_of_meshfile(folder: Path) -> list[str]:
    """Names that a mesh written down here gives its nodes, running or not."""
    mesh = find_mesh(None, folder) if is_there(folder / DEFAULT_FILE) else None
    return [str(node["name"]) for node in mesh.nodes] if mesh is not None else []


def own_trackers(home: Home) -> str | None:
    """Wallets of the trackers that run in this home: a relay beside them takes their tickets. None: there are none."""
    urls = [record.url for record in processes.living(home) if record.kind == "tracker" and record.url]
    return ",".join(ask(url, lambda client: client.health()).wallet for url in urls) or None


def _given(**settings: Any) -> dict[str, Any]:
    """Only what was said: everything else is the daemon's own default, environment or TOML."""
    return {key: value for key, value in settings.items() if value is not None and value != []}


def _one(spec: DaemonSpec, said: Iterable[str], foreground: bool, timeout_s: float) -> None:
    """``said``: the settings that this command line names."""
    if foreground:
        bring_up = BringUp(home_of(os.environ), os.environ, console(), timeout_s)
        run_in_foreground(bring_up.prepared(spec), os.environ)
    report = _locked(timeout_s, lambda bring_up: bring_up.one(spec))
    code = _tell(home_of(os.environ), report, whole=False)
    if spec.name in report.kept and (other := _other_flags(spec, said)):
        text = f"{spec.name} ran already, without {other}: flags do not change a running daemon."
        console().print(f"{visible(text)} First: meshnet down {visible(spec.name)}", soft_wrap=True)
    raise typer.Exit(code)


def _other_flags(spec: DaemonSpec, said: Iterable[str]) -> str:
    """What this command line says and that of the running daemon does not."""
    record = home_of(os.environ).record(spec.name)
    process = processes.find(record) if record is not None else None
    if process is None:
        return ""
    runs_with = f" {' '.join(process.cmdline())} "
    flags = (" ".join(launch.flags({key: spec.settings[key]})) for key in said)
    return ", ".join(flag for flag in flags if f" {flag} " not in runs_with)


def _locked(timeout_s: float, work: Callable[[BringUp], Report]) -> Report:
    home, out = home_of(os.environ), console()

    def on_wait() -> None:
        out.print("Another `meshnet up` is at work in this home; waiting for it.")

    with lock.held(home.up_lock, timeout_s, on_wait):
        try:
            return work(BringUp(home, os.environ, out, timeout_s))
        except KeyboardInterrupt:
            out.print("Interrupted. What was started goes on: meshnet status shows it, meshnet down stops it.")
            raise


def _tell(home: Home, report: Report, whole: bool) -> int:
    """What runs where, what failed and why, what to do next. Returns the exit code."""
    out = console()
    for sight in report.sights:
        if sight.phase == "ready":
            how = "kept" if sight.name in report.kept else "started"
            line = f"{visible(sight.name):<10}{sight.url:<24} {how:<8} {visible(sight.detail)}"
            out.print(line.rstrip(), soft_wrap=True)
    if report.failures:
        _tell_failures(home, report)
        return exits.FAILED
    if report.missing:
        complain(f"The daemons run, but the mesh cannot answer: {report.missing}.", hint="See: meshnet coverage")
        return exits.NO_ROUTE
    if whole:
        out.print(Text(f"The mesh is up. OpenAI clients: {report.tracker_url}/v1", style="bold"), soft_wrap=True)
        out.print("Next: meshnet chat, meshnet status, meshnet console; meshnet down stops it.")
    return exits.OK


def _tell_failures(home: Home, report: Report) -> None:
    for sight in report.failures:
        log = home.log_file(sight.name)
        what = sight.detail if sight.phase == "failed" else f"not ready in time: {sight.detail}"
        complain(f"{sight.name} {what}. Last lines of {log}:")
        started = report.started.get(sight.name)
        for text in readiness.log_tail(log, started.log_offset if started else 0):
            error_console().print(f"  {visible(text)}", soft_wrap=True)
    running = [r.name for r in processes.living(home)]
    hint = f"Still running: {', '.join(running)} (meshnet down stops them)." if running else "Nothing runs."
    console().print(f"{hint} When the cause is mended, run the same command again.", soft_wrap=True)
