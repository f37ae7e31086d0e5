"""A real model over three shards: two houses behind relays and a public node, everything over TLS, and a relay that
is killed in the middle of an answer. The same mesh on loopback in the clear says what the text is, and that the packets
of the other one would have shown it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from exposed import get, join_node, open_public_host, ready_in, ready_nodes, start_relay
from houses import PUBLIC, Town, flags, pieces, town

from meshnet.weights.store import Store
from tests.tui.debian import need_namespaces

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2-135m"
CANARY = "The quick yellow canary sings at dawn"
PROMPT = f"{CANARY}. What does the canary do? Tell me about it."
TOKENS = 24
BACK_S = 30.0


def test_houses_behind_relays_answer_and_outlive_a_relay(tmp_path: Path, real_store: Store) -> None:
    need_namespaces()
    with town(tmp_path, real_store.root, 2) as place:
        whole = on_loopback(place)
        assert len(whole) > 20
        place.capture(place.public, "capture")
        open_public_host(place, spare_wait=20)
        tracker = place.url(place.public, "tracker")
        relays = [place.url(place.public, name) for name in ("r1", "r2")]
        join_nodes(place, relays)
        nodes = ready_nodes(place, {"h0", "h1", "pub"})
        assert {name: node["relayed"] for name, node in nodes.items()} == {"h0": True, "h1": True, "pub": False}
        schemes = {name: node["url"].partition(":")[0] for name, node in nodes.items()}
        assert schemes == {"h0": "relay", "h1": "relay", "pub": "tls"}, "the houses are relayed, the public node direct"
        assert place.chat(tracker, PROMPT, TOKENS) == whole
        log = place.folder / "tracker.log"
        # A house reaches the public node too.
        place.wait(lambda: "works=True witnessed=True" in log.read_text("utf-8"))
        assert kill_in_mid_stream(place, tracker) == whole
        (last, *_) = json.loads(get(place, "/v1/calls"))["calls"]
        assert last["reroutes"] >= 1 and last["outcome"] == "ok", "the relay died in the middle of it"
        comes_back(place, relays[0])
        packets = place.captured("capture")
        assert len(packets) > 100_000, "the capture saw the mesh at work"
        assert seen_in(packets, whole) == []
        nothing_is_written_down(place, whole)


def seen_in(packets: bytes, answer: str) -> list[str]:
    """What of the prompt and of the answer lies in the clear there."""
    words = (CANARY, *(word for word in CANARY.split() if len(word) > 5), answer[:30])
    return [word for word in words if word.encode() in packets]


def on_loopback(place: Town) -> str:
    """The text of the same shards without relays, keys and TLS; a capture there does see the prompt."""
    place.capture(place.island, "control")
    place.start_daemon(place.island, "tracker", "l-tracker", *flags(port=0))
    tracker = place.url(place.island, "l-tracker")
    common = flags(model=MODEL, tracker=tracker, port=0, threads=1)
    for name, shard in (("l0", "0-9"), ("l1", "10-19"), ("l2", "20-29")):
        place.start_daemon(place.island, "node", name, *common, *flags(shard=shard))
    look = ("-c", LOOK, tracker + "/v1/nodes")
    place.wait(lambda: len(ready_in(place, ("l0", "l1", "l2"), place.run(place.island, *look).stdout)) == 3)
    text = place.chat(tracker, PROMPT, TOKENS, place.island)
    place.kill("l-tracker", "l0", "l1", "l2", "control")
    assert CANARY in seen_in(place.captured("control"), text), "the capture sees what is in the clear"
    return text


LOOK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


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


def join_nodes(place: Town, relays: list[str]) -> None:
    two = ",".join(relays)
    join_node(place, place.houses[0], "h0", model=MODEL, shard="0-9", relay=two)
    join_node(place, place.houses[1], "h1", model=MODEL, shard="10-19", relay=two)
    join_node(place, place.public, "pub", model=MODEL, shard="20-29", host=PUBLIC)


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
