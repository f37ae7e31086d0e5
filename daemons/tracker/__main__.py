"""``python -m daemons.tracker``: settings, identity, clocks and dice are made here and handed down."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import ssl
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import aiohttp

from daemons.kit import config, logs
from daemons.kit.clock import SteadyClock, seconds_since_boot, wall_clock
from daemons.kit.dial import MeshConnector
from daemons.kit.identity import WalletKey, load_or_create
from daemons.kit.keyfile import KeyFile
from daemons.kit.peerfiles import PeerFiles
from daemons.kit.run import Stop, run, write_run_file
from daemons.kit.tls import server_context
from daemons.tracker.app import open_site
from daemons.tracker.decisions import DecisionLog
from daemons.tracker.doors import make_guard
from daemons.tracker.parts import Clock, Identity, Tracker
from daemons.tracker.seal import Seal
from daemons.tracker.settings import TrackerConfig
from daemons.tracker.store import Database, Saved, open_database
from daemons.tracker.supply import Means
from meshnet.client.http import Credentials, open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.decision_log import FILE_ENDING
from meshnet.domain.errors import MeshnetError
from meshnet.domain.keys import check_bind
from meshnet.domain.slices import next_generation
from meshnet.weights.places import state_root, store_root
from meshnet.weights.store import Store
from meshnet.wire.keyfile import KEY_FILE

log = logging.getLogger(__name__)

TIMEOUTS = {
    "connect": "a link to a head may take to open",
    "first-token": "until the first token, beside the prompt's own time",
    "between-tokens": "of silence until hops are asked whose fault it is (or 8 x the route's slowest step)",
    "call": "a whole call may take, all attempts together",
    "write": "a client may take no byte before it counts as gone",
}
"""The table of docs/robustness.md, as flags."""


def main(argv: list[str] | None = None) -> int:
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv)
        keys = KeyFile(state_root(os.environ) / KEY_FILE)
        check_bind(settings.host, settings.profile, has_keys=keys().has_live(), has_tls=settings.has_tls)
    except MeshnetError as error:
        print(error.message, file=sys.stderr)
        return 1
    logs.configure(settings.log_level)
    return run(lambda stop: serve_until(stop, settings, keys))


def read_settings(argv: list[str]) -> TrackerConfig:
    """Defaults < --config < MESHNET_* < flags. Raises StartError."""
    flags = vars(_parser().parse_args(argv))
    toml = flags.pop("config")
    return config.load(TrackerConfig, "tracker", toml, os.environ, flags)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemons.tracker", description="Run a tracker.")
    parser.add_argument("--config", type=Path, help="TOML file; its [tracker] table is read")
    parser.add_argument("--host", help="address to listen on; beyond loopback with --profile lan or exposed")
    parser.add_argument("--profile", help="who may come in: local (this machine), lan (with keys), exposed (and TLS)")
    parser.add_argument("--tls-certificate", help="PEM file; with --tls-key clients come by https://")
    parser.add_argument("--tls-key", help="PEM file")
    parser.add_argument("--trusted-proxy", help="addresses of proxies that end TLS before us, with commas between")
    parser.add_argument("--public-names", help="host names under which clients call us, with commas between")
    parser.add_argument("--join-allow", help="wallets that may join without a token, with commas between")
    parser.add_argument("--allow-cidrs", help="private networks nodes of an exposed mesh may be in, by commas")
    parser.add_argument("--trusted-nodes", help="wallets of the only nodes that routes may use, by commas")
    parser.add_argument("--relays", help="relays told to nodes that nobody can dial: ws://host:7090, by commas")
    parser.add_argument("--port", type=int, help="0 asks for a free one")
    parser.add_argument("--name", help="of the run file and the log")
    parser.add_argument("--log-level", help="DEBUG, INFO, WARNING or ERROR")
    parser.add_argument("--stats-db", help="SQLite file of demand, calls and the usage ledger")
    parser.add_argument("--peer", action="append", help="address of another tracker to share demand with (repeatable)")
    parser.add_argument("--route-policy", help="how routes are chosen: adr, hop, greedy, eps, thompson, p2c, random")
    parser.add_argument(
        "--route-explore-share",
        type=float,
        help="0..1, share of requests that scout unproven routes; lower to 0.05-0.1 once real traffic comes",
    )
    parser.add_argument(
        "--route-weight-alpha", type=float, help="exploit traffic goes as tps^alpha; raise once real traffic comes"
    )
    parser.add_argument("--route-stats-half-life", type=float, help="seconds until a sample counts half")
    for name, what in TIMEOUTS.items():
        parser.add_argument(f"--timeout-{name}", type=float, help=f"seconds {what}")
    parser.add_argument("--spare-wait", type=float, help="seconds a call without a route waits for one to appear")
    parser.add_argument("--audit-share", type=float, help="share of calls of which one hop's output is checked")
    parser.add_argument("--drain", type=float, help="seconds a stop waits for running answers")
    return parser


async def serve_until(stop: Stop, settings: TrackerConfig, keys: KeyFile) -> None:
    root = state_root(os.environ)
    tls = None
    if settings.tls_certificate:
        tls = server_context(Path(settings.tls_certificate), Path(settings.tls_key))
    key = load_or_create(root / "trackers" / f"{settings.name}.key")
    clock = Clock(time.monotonic, wall_clock(os.environ))
    database = open_database(database_path(root, settings))
    with contextlib.closing(database):
        await _serve(stop, settings, root, database, clock, key, keys, tls)


async def _serve(
    stop: Stop,
    settings: TrackerConfig,
    root: Path,
    database: Database,
    clock: Clock,
    key: WalletKey,
    keys: KeyFile,
    tls: ssl.SSLContext | None,
) -> None:
    saved = rightful(database.load(settings.max_calls_kept), key.wallet)
    identity = Identity(key.wallet, secrets.token_hex(8), next_generation(saved.generation, clock.wall()), key)
    rng = Random(settings.route_rng if settings.route_rng is not None else secrets.randbits(64))
    shared = SteadyClock(clock.wall, seconds_since_boot)
    seal = Seal(key, clock.now, shared, lambda: secrets.token_hex(16), required=settings.profile != "local")
    connector = MeshConnector(key, seal.link_ticket, settings.check_address, limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as http, open_http() as client:
        peers = [TrackerClient(client, url, Credentials(settings.peer_key)) for url in settings.peer]
        store = Store(store_root(os.environ))
        means = Means(
            store, lambda url: PeerFiles(http, url, seal.link_ticket), Random(identity.boot), peers, database, saved
        )
        decisions = decision_log(root, settings, identity.boot)
        tracker = Tracker(settings, identity, http, clock, rng, means, decisions, seal)
        guard = make_guard(settings, identity, Clock(clock.now, shared), keys)
        guard.settle, guard.hold = shared.settle_for, shared.hold
        site = await open_site(tracker, settings.host, settings.port, guard, tls)
        run_file = write_run_file(root / "run", "tracker", settings.name, site.url)
        print(f"tracker {settings.name} listens on {site.url}", flush=True)
        try:
            await stop.wait()
            await stop.patient(tracker.drain(settings.drain))
        finally:
            await tracker.stop()
            await site.close()
            await tracker.close()
            with contextlib.suppress(FileNotFoundError):
                run_file.unlink()


def database_path(root: Path, settings: TrackerConfig) -> Path:
    """``--stats-db``, else ``<state>/trackers/<name>.db``."""
    return Path(settings.stats_db).expanduser() if settings.stats_db else root / "trackers" / f"{settings.name}.db"


def decision_log(root: Path, settings: TrackerConfig, boot: str) -> DecisionLog | None:
    if not settings.decision_log_mib:
        return None
    path = root / "trackers" / f"{settings.name}{FILE_ENDING}"
    return DecisionLog(path, boot, settings.decision_log_mib * 1024 * 1024)


def rightful(saved: Saved, tracker_id: str) -> Saved:
    """What was kept, without the counts of another tracker: its peers still add up those under the old id, and two
    trackers that count them would double them."""
    if not saved.demand or saved.tracker_id in (None, tracker_id):
        return saved
    log.warning("counts of demand are another tracker's and are left out old=%s ours=%s", saved.tracker_id, tracker_id)
    return replace(saved, demand=())


if __name__ == "__main__":
    sys.exit(main())
