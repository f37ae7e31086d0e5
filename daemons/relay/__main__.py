"""``python -m daemons.relay``: settings, key, clocks and dice are made here and handed down. Needs no torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import secrets
import sys
import time
from pathlib import Path

from daemons.kit import config, logs
from daemons.kit.clock import wall_clock
from daemons.kit.identity import load_or_create
from daemons.kit.keyfile import KeyFile
from daemons.kit.run import Stop, run, write_run_file
from daemons.kit.tls import server_context
from daemons.relay.app import Relay
from daemons.relay.settings import RelayConfig
from meshnet.domain.errors import MeshnetError
from meshnet.weights.places import state_root
from meshnet.wire.keyfile import KEY_FILE


def main(argv: list[str] | None = None) -> int:
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv)
    except MeshnetError as error:
        print(error.message, file=sys.stderr)
        return 1
    logs.configure(settings.log_level)
    return run(lambda stop: serve_until(stop, settings))


def read_settings(argv: list[str]) -> RelayConfig:
    """Defaults < --config < MESHNET_* < flags. Raises StartError."""
    flags = vars(_parser().parse_args(argv))
    toml = flags.pop("config")
    return config.load(RelayConfig, "relay", toml, os.environ, flags)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemons.relay", description="Run a relay.")
    parser.add_argument("--config", type=Path, help="TOML file; its [relay] table is read")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="control port; 0 asks for a free one")
    parser.add_argument("--splice-port", type=int, help="port of the links; 0 asks for a free one")
    parser.add_argument("--name", help="of the run file, the key and the log")
    parser.add_argument("--trackers", help="wallets of the trackers whose tickets open links, with commas between")
    parser.add_argument("--tls-certificate", help="PEM file; with --tls-key the control port speaks wss://")
    parser.add_argument("--tls-key", help="PEM file")
    parser.add_argument("--log-level", help="DEBUG, INFO, WARNING or ERROR")
    return parser


async def serve_until(stop: Stop, settings: RelayConfig) -> None:
    root = state_root(os.environ)
    key = load_or_create(root / "relays" / settings.name / "wallet.key")
    keys = KeyFile(root / KEY_FILE)
    tls = None
    if settings.tls_certificate:
        tls = server_context(Path(settings.tls_certificate), Path(settings.tls_key))
    allow_more_sockets()
    clocks = (time.monotonic, wall_clock(os.environ))
    relay = Relay(settings, key.wallet, secrets.token_hex(8), *clocks, lambda: secrets.token_hex(32), keys)
    site = await relay.open(tls)
    run_file = write_run_file(root / "run", "relay", settings.name, site.url)
    print(f"relay {settings.name} listens on {site.url} (links: port {relay.splice_port})", flush=True)
    try:
        await stop.wait()
    finally:
        await relay.stop()
        with contextlib.suppress(FileNotFoundError):
            run_file.unlink()


def allow_more_sockets() -> None:
    """Two sockets a splice: the usual soft limit of 1,024 files is below our own limits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
