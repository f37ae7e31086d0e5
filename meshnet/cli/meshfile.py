"""``meshnet.toml``: the mesh a person wants on this machine, or the demo mesh where there is no file.

Reads and checks; starts nothing. Keys are those of the daemons' flags with ``_`` for ``-``; a misspelt one is an error.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet.cli.home import check_name
from meshnet.domain.errors import InvalidRequest, StartError
from meshnet.domain.ids import is_model_key
from meshnet.domain.shards import parse_shard

DEFAULT_FILE = "meshnet.toml"
DEMO_MODEL = "smollm2-135m"
DEMO_SHARDS = ("0-14", "15-29", "0-29")
"""Overlapping, so that there are two routes and something to learn."""

MESH_KEYS = ("model", "tracker")
TRACKER_FLAGS = (
    "name",
    "host",
    "port",
    "profile",
    "tls_certificate",
    "tls_key",
    "trusted_proxy",
    "public_names",
    "join_allow",
    "allow_cidrs",
    "relays",
    "trusted_nodes",
    "stats_db",
    "peer",
    "route_policy",
    "route_explore_share",
    "route_weight_alpha",
    "route_stats_half_life",
)
RELAY_FLAGS = ("name", "host", "port", "splice_port", "trackers", "tls_certificate", "tls_key")
NODE_FLAGS = (
    "name",
    "model",
    "shard",
    "tracker",
    "memory",
    "sessions",
    "context",
    "host",
    "port",
    "advertise_url",
    "profile",
    "relay",
    "ca_file",
    "payout",
    "allow_cidrs",
    "threads",
    "dtype",
    "kv_budget",
    "delay_per_layer_ms",
    "rebalance",
)
"""What is handed down as flags. The same names are keys of the file."""
TRACKER_WITHOUT_FLAG = (
    "log_level",
    "route_min_sample_tokens",
    "route_learning",
    "route_rng",
    "timeout_connect",
    "timeout_first_token",
    "timeout_between_tokens",
    "timeout_call",
    "timeout_write",
    "spare_wait",
    "max_calls_kept",
    "decision_log_mib",
    "drain",
    "audit_share",
    "max_nodes_per_address",
    "peer_key",
)
RELAY_WITHOUT_FLAG = (
    "log_level",
    "max_nodes",
    "max_nodes_per_address",
    "max_splices",
    "max_splices_per_node",
    "max_splices_per_address",
    "max_waiting",
    "max_waiting_per_address",
    "opens_per_s",
    "open_burst",
    "handshake_s",
    "idle_s",
    "max_splice_gib",
)
NODE_WITHOUT_FLAG = ("log_level", "join_token")
WITHOUT_FLAG = frozenset((*TRACKER_WITHOUT_FLAG, *RELAY_WITHOUT_FLAG, *NODE_WITHOUT_FLAG))
"""Settings that a daemon takes from its environment (MESHNET_ROUTE_RNG), not from a flag."""
TRACKER_KEYS = TRACKER_FLAGS + TRACKER_WITHOUT_FLAG
RELAY_KEYS = RELAY_FLAGS + RELAY_WITHOUT_FLAG
NODE_KEYS = NODE_FLAGS + NODE_WITHOUT_FLAG

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeshFile:
    """A mesh as written down. ``tracker`` is None where nodes join one elsewhere (``tracker_url``), ``relay`` where
    none is to be started."""

    source: str
    tracker: Settings | None
    nodes: tuple[Settings, ...]
    model: str = DEMO_MODEL
    tracker_url: str | None = None
    relay: Settings | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that some node needs, in order."""
        return tuple(dict.fromkeys(str(node["model"]) for node in self.nodes if node.get("model")))


def demo_mesh() -> MeshFile:
    nodes = tuple(
        {"name": f"n{number}", "model": DEMO_MODEL, "shard": shard} for number, shard in enumerate(DEMO_SHARDS, 1)
    )
    return MeshFile("the demo mesh", {"name": "tracker"}, nodes)


def find_mesh(config: Path | None, folder: Path) -> MeshFile:
    """The file that was named, else ``meshnet.toml`` in ``folder``, else the demo mesh."""
    if config is not None:
        return read_mesh(config)
    default = folder / DEFAULT_FILE
    return read_mesh(default) if is_there(default) else demo_mesh()


def is_there(path: Path) -> bool:
    """Also a folder or a link to nothing: reading it then says what is wrong, and nobody's demo mesh starts instead."""
    return path.exists() or path.is_symlink()


def read_mesh(path: Path) -> MeshFile:
    """Raises StartError naming file, line or key, and what would be right."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        link = " (it is a link to nothing)" if path.is_symlink() and not path.exists() else ""
        raise StartError(f"Cannot read {path}: {error.strerror}{link}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # tomllib's message ends in "(at line N, column M)".
        raise StartError(f"{path} is not valid TOML: {error}.") from None
    if not document:
        raise StartError(f"{path} is empty: it starts nothing. docs/meshnet.toml.example shows what it can say.")
    return build_mesh(document, str(path))


def build_mesh(document: dict[str, Any], source: str) -> MeshFile:
    _check_keys(document, ("mesh", "tracker", "relay", "node"), f"{source}: the file", "table")
    mesh = _table(document, "mesh", source, MESH_KEYS)
    tracker = _table(document, "tracker", source, TRACKER_KEYS) if "tracker" in document else None
    model = mesh.get("model", DEMO_MODEL)
    if not isinstance(model, str) or not is_model_key(model):
        raise StartError(f"{source}: [mesh] model is {model!r}; it must be a model's short name, like {DEMO_MODEL!r}.")
    tracker_url = mesh.get("tracker")
    if tracker is not None and tracker_url is not None:
        raise StartError(f"{source}: give either a [tracker] to start or [mesh] tracker to join one, not both.")
    if tracker is None and tracker_url is None:
        tracker = {}
    nodes = _nodes(document, source, model)
    if tracker is not None:
        tracker = {"name": "tracker"} | tracker
        _check_types(tracker, f"{source}: [tracker]")
    relay = None
    if "relay" in document:
        relay = {"name": "relay"} | _table(document, "relay", source, RELAY_KEYS)
        _check_types(relay, f"{source}: [relay]")
    _check_names([*filter(None, (tracker, relay)), *nodes], source)
    return MeshFile(source, tracker, nodes, model, tracker_url, relay)


def _nodes(document: dict[str, Any], source: str, model: str) -> tuple[Settings, ...]:
    tables = document.get("node", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise StartError(f"{source}: nodes are written as [[node]], one table each.")
    nodes = []
    for number, table in enumerate(tables, 1):
        where = f"{source}: [[node]] {table.get('name', number)}"
        _check_keys(table, NODE_KEYS, where, "setting")
        node = {"name": f"n{number}", "model": model} | table
        _check_types(node, where)
        if "shard" in node:
            _check_shard(node["shard"], where)
        nodes.append(node)
    return tuple(nodes)


def _table(document: dict[str, Any], name: str, source: str, keys: tuple[str, ...]) -> Settings:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise StartError(f"{source}: [{name}] must be a table.")
    _check_keys(table, keys, f"{source}: [{name}]", "setting")
    return dict(table)


def _check_keys(table: dict[str, Any], known: tuple[str, ...], where: str, word: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise StartError(f"{where} has no {word} {key!r}.{meant} It has: {', '.join(known)}.")


def _check_types(settings: Settings, where: str) -> None:
    for key, value in settings.items():
        if key in ("port", "splice_port") and not (
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535
        ):
            raise StartError(f"{where} {key} is {value!r}; it must be 0 (a free one) to 65535.")
        if key == "threads" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            raise StartError(f"{where} threads is {value!r}; it must be a number from 1.")
        if key in ("name", "host", "model", "shard", "tracker", "dtype") and not isinstance(value, str):
            raise StartError(f"{where} {key} is {value!r}; it must be a string.")
        if isinstance(value, dict):
            raise StartError(f"{where} {key} is a table; it must be a plain value.")


def _check_shard(text: str, where: str) -> None:
    try:
        parse_shard(text)
    except InvalidRequest as error:
        raise StartError(f"{where}: {error.message}") from None


def _check_names(daemons: list[Settings], source: str) -> None:
    seen: set[str] = set()
    for settings in daemons:
        name = check_name(str(settings["name"]))
        if name in seen:
            raise StartError(f"{source}: two daemons are named {name!r}; give each its own name.")
        seen.add(name)
