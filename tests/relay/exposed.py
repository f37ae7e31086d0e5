"""An exposed mesh in a town: tracker and relays on the public host, keys, certificates."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from houses import NETWORK, PUBLIC, Town, flags

GET = """
import os, ssl, sys, urllib.request
key = {"Authorization": "Bearer " + os.environ["MESHNET_API_KEY"]}
tls = ssl.create_default_context(cafile=os.environ["MESHNET_CA_FILE"])
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=key), context=tls).read().decode())
"""


def get(place: Town, path: str) -> str:
    """What the tracker answers the operator."""
    return place.run(place.public, "-c", GET, place.url(place.public, "tracker") + path).stdout


def open_public_host(place: Town, **settings: object) -> None:
    """Keys, certificates, a tracker with these settings more, relays r1 and r2, and the environment that uses them."""
    key = place.meshnet("keys", "create", "me", "--scope", "admin").strip()
    token = place.meshnet("keys", "create", "nodes", "--scope", "join").strip()
    certificate = place.meshnet("ca", "init", PUBLIC).split()[-4:]
    place.environ |= {
        "MESHNET_API_KEY": key,
        "MESHNET_JOIN_TOKEN": token,
        "MESHNET_CA_FILE": str(place.home(place.public) / "ca" / "ca.pem"),
    }
    place.start_daemon(
        place.public,
        "tracker",
        "tracker",
        *certificate,
        *flags(host=PUBLIC, port=0, profile="exposed", allow_cidrs=NETWORK, **settings),
    )
    wallet = json.loads(get(place, "/healthz"))["wallet"]
    for name in ("r1", "r2"):
        start_relay(place, name, wallet, certificate)
    place.tracker_wallet = wallet


def start_relay(place: Town, name: str, wallet: str, certificate: list[str], port: int = 0) -> None:
    place.start_daemon(
        place.public,
        "relay",
        name,
        *certificate,
        *flags(host=PUBLIC, port=port, splice_port=0, trackers=wallet),
    )


def join_node(place: Town, at: str, name: str, **settings: object) -> None:
    tracker = place.url(place.public, "tracker")
    common = flags(tracker=tracker, port=0, threads=1, profile="exposed", allow_cidrs=NETWORK)
    place.start_daemon(at, "node", name, *common, *flags(**settings))


def ready_nodes(place: Town, names: Collection[str]) -> dict[str, Any]:
    """What the tracker says of each, by name, once all of them are ready."""
    found: dict[str, Any] = {}

    def are_ready() -> bool:
        found.update(ready_in(place, names, get(place, "/v1/nodes")))
        return len(found) == len(names)

    place.wait(are_ready)
    return found


def ready_in(place: Town, names: Collection[str], answer: str) -> dict[str, Any]:
    for name in names:
        assert place.processes[name].poll() is None, place.log(name)
    return {node["name"]: node for node in json.loads(answer)["nodes"] if node["state"] == "ready"}
