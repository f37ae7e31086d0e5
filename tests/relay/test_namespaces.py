"""A real model over three shards: two houses behind relays and a public node, everything over TLS, and a relay that
is killed in the middle of an answer."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from houses import CAPTURE, NETWORK, PUBLIC, Town, can_make_namespaces, flags, pieces, town

from meshnet.weights.store import Store

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

CANARY = "The quick yellow canary sings at dawn"
PROMPT = f"{CANARY}. What does the canary do? Tell me about it."
TOKENS = 24
BACK_S = 30.0


@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces cannot be made here: root and iproute2")
def test_houses_behind_relays_answer_and_outlive_a_relay(tmp_path: Path, real_store: Store) -> None:
    with town(tmp_path, real_store.root, 2) as place:
        open_public_host(place)
        tracker = place.url(place.public, "tracker")
        relays = [place.url(place.public, name) for name in ("r1", "r2")]
        join_nodes(place, tracker, relays)
        nodes = ready_nodes(place, 3)
        schemes = {name: url.partition(":")[0] for name, url in nodes.items()}
        assert schemes == {"h0": "relay", "h1": "relay", "pub": "tls"}, "the houses are relayed, the public node direct"
        whole = "".join(pieces(place.ask(tracker, PROMPT, TOKENS)))
        assert len(whole) > 20
        assert kill_in_mid_stream(place, tracker) == whole
        (last, *_) = json.loads(get(place, "/v1/calls"))["calls"]
        assert last["reroutes"] >= 1 and last["outcome"] == "ok", "the relay died in the middle of it"
        comes_back(place, relays[0])
        capture = (tmp_path / "capture").read_bytes()
        assert len(capture) > 100_000, "the capture saw the mesh at work"
        assert not [word for word in (CANARY, *CANARY.split()[1:5]) if word.encode() in capture and len(word) > 5]
        assert whole[:30].encode() not in capture
        nothing_is_written_down(place, whole)


GET = """
import os, ssl, sys, urllib.request
key = {"Authorization": "Bearer " + os.environ["MESHNET_API_KEY"]}
tls = ssl.create_default_context(cafile=os.environ["MESHNET_CA_FILE"])
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=key), context=tls).read().decode())
"""


def get(place: Town, path: str) -> str:
    """What the tracker answers the operator."""
    return place.run(place.public, "-c", GET, place.url(place.public, "tracker") + path).stdout


def nothing_is_written_down(place: Town, answer: str) -> None:
    """No log and no state file of any daemon has the prompt, the answer or a key."""
    files = [*place.folder.glob("*.log")]
    for home in (place.public, *place.houses):
        files += [path for path in place.home(home).glob("[!m]*/**/*") if path.is_file()]
    assert len(files) > 12
    secret = [place.environ[name].rpartition("_")[2] for name in ("MESHNET_API_KEY", "MESHNET_JOIN_TOKEN")]
    for path in files:
        content = path.read_bytes()
        found = [word for word in (CANARY, answer[:30], *secret) if word.encode() in content]
        assert not found, f"{path} has {found}"


def open_public_host(place: Town) -> None:
    capture = place.start(place.public, "capture", "-c", CAPTURE, str(place.folder / "capture"), out=subprocess.PIPE)
    assert capture.stdout is not None and capture.stdout.readline()
    capture.stdout.close()
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
        *flags(host=PUBLIC, port=0, profile="exposed", allow_cidrs=NETWORK, spare_wait=20),
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


def join_nodes(place: Town, tracker: str, relays: list[str]) -> None:
    common = flags(
        log_level="INFO",
        model="smollm2-135m",
        tracker=tracker,
        port=0,
        threads=1,
        profile="exposed",
        allow_cidrs=NETWORK,
    )
    place.start_daemon(place.houses[0], "node", "h0", *common, *flags(shard="0-9", relay=",".join(relays)))
    place.start_daemon(place.houses[1], "node", "h1", *common, *flags(shard="10-19", relay=",".join(relays)))
    place.start_daemon(place.public, "node", "pub", *common, *flags(shard="20-29", host=PUBLIC))


def ready_nodes(place: Town, count: int) -> dict[str, str]:
    """Urls by name once so many nodes are ready."""
    found: dict[str, str] = {}

    def are_ready() -> bool:
        for name in ("h0", "h1", "pub"):
            assert place.processes[name].poll() is None, place.log(name)
        nodes = [node for node in json.loads(get(place, "/v1/nodes"))["nodes"] if node["state"] == "ready"]
        found.update({node["name"]: node["url"] for node in nodes})
        return len(nodes) == count

    place.wait(are_ready)
    return found


def kill_in_mid_stream(place: Town, tracker: str) -> str:
    """The text of an answer whose first relay dies by SIGKILL after some pieces."""
    answer = place.ask(tracker, PROMPT, TOKENS, "second ask")
    text = ""
    for number, piece in enumerate(pieces(answer)):
        text += piece
        if number == 4:
            place.processes["r1"].kill()
            place.processes["r1"].wait()
    return text


def comes_back(place: Town, relay: str) -> None:
    """The relay returns at its port, and both houses take their seats within BACK_S."""
    certificate = place.meshnet("ca", "issue", PUBLIC).split()[-4:]
    start_relay(place, "r1", place.tracker_wallet, certificate, int(relay.rsplit(":", 1)[1]))
    place.url(place.public, "r1")
    began = time.monotonic()
    place.wait(lambda: place.log("r1").count("seat taken") >= 2, BACK_S)
    assert time.monotonic() - began <= BACK_S
