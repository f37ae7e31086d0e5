"""Weights and audits through relays: a house with nothing but the package, fed by another house, both checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exposed import join_node, open_public_host, ready_nodes
from houses import PUBLIC, Town, town

from meshnet.domain.shards import Shard
from meshnet.weights.store import Store
from tests.tui.debian import need_namespaces

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2-135m"
WHOLE = Shard(0, 29)
ROOM = {"memory": "1400MB", "sessions": 8, "context": 256}
"""All layers fit."""


def test_houses_feed_each_other_through_relays_and_pass_audits(tmp_path: Path, real_store: Store) -> None:
    need_namespaces()
    with town(tmp_path, real_store.root, 2) as place:
        place.bare |= {place.public, place.houses[1]}
        open_public_host(place, audit_share=1)
        tracker, relay = place.url(place.public, "tracker"), place.url(place.public, "r1")
        join_node(place, place.houses[0], "h0", model=MODEL, shard=WHOLE, relay=relay)
        ready_nodes(place, {"h0"})
        join_node(place, place.houses[1], "h1", relay=relay, **ROOM)
        ready_nodes(place, {"h0", "h1"})
        assert_fetched(place, place.houses[1], "h1", real_store)
        assert not (place.home(place.public) / "models").exists(), "the tracker had nothing to give"
        join_node(place, place.public, "pub", host=PUBLIC, **ROOM)
        nodes = ready_nodes(place, {"h0", "h1", "pub"})
        assert_fetched(place, place.public, "pub", real_store)
        ways = {name: node["url"].partition(":")[0] for name, node in nodes.items()}
        assert ways == {"h0": "relay", "h1": "relay", "pub": "tls"}
        for name, node in nodes.items():
            place.meshnet("chat", "--tracker", tracker, "--route", name, "--max-tokens", "2", "Hi")
            place.wait(lambda node=node: is_audited(place, node["node_id"]))
        assert not re.findall(r"audit (?:disagreed|convicted|unanswered)", whole_log(place))


def assert_fetched(place: Town, at: str, name: str, real_store: Store) -> None:
    """Every layer came over the wire, bit for bit."""
    (fetched,) = re.findall(r"weights fetched layers=0-29 bytes=(\d+)", (place.folder / f"{name}.log").read_text())
    assert int(fetched) == real_store.open(MODEL).shard_bytes(WHOLE)
    Store(place.home(at) / "models").open(MODEL).verify(WHOLE)


def is_audited(place: Town, node_id: str) -> bool:
    return any(node_id in line for line in whole_log(place).splitlines() if "audit agreed" in line)


def whole_log(place: Town) -> str:
    return (place.folder / "tracker.log").read_text("utf-8", "replace")
