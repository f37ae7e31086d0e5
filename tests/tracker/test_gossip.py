"""Three trackers in a ring: what each adds up never exceeds the truth, whatever is killed, moved, doubled or lost."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from daemons.tracker.gossip import INTERVAL_S, MOST_S, Gossip
from daemons.tracker.store import open_database
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.demand import MAX_PEERS, DemandStats
from meshnet.domain.errors import InvalidRequest, MeshnetError, Unreachable
from meshnet.domain.ids import wallet_of
from meshnet.domain.slices import next_generation
from meshnet.wire import api
from meshnet.wire.demand import GossipMessage
from meshnet.wire.slices import open_slice
from tests.tracker.running import Running, run_tracker

NOW = 1_800_000_000.0
MODEL = "smollm2-135m"


@functools.cache
def key_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def wallet_of_tracker(name: str) -> str:
    return wallet_of(key_of(name).public_key().public_bytes_raw())


def signed_text(name: str, body: bytes) -> str:
    """Any body, signed as this tracker's slice."""
    public, signature = key_of(name).public_key().public_bytes_raw(), key_of(name).sign(b"meshnet-slice-v1\0" + body)
    parts = (base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (public, signature))
    return ".".join([*parts, body.decode()])


class Clock:
    def __init__(self) -> None:
        self.wall = NOW

    def now(self) -> float:
        return self.wall - NOW


class Net:
    """Who answers at which address. Counts what crosses it."""

    def __init__(self) -> None:
        self.at: dict[str, Gossip] = {}
        self.crossed = 0
        self.duplicate = False
        self.lose_answer = False


class Wire:
    """A peer at an address of the net."""

    def __init__(self, net: Net, url: str) -> None:
        self._net, self.url = net, url

    async def gossip(self, message: GossipMessage) -> GossipMessage:
        self._net.crossed += 1
        if self.url not in self._net.at:
            raise Unreachable(f"nobody at {self.url}")
        answer = self._net.at[self.url].answer(message)
        if self._net.duplicate:
            self._net.at[self.url].answer(message)
        if self._net.lose_answer:
            raise Unreachable("the answer was lost")
        return answer


class Mesh:
    """Trackers a, b and c, each knowing the next one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.net, self.clock = folder, Net(), Clock()
        self.demand: dict[str, DemandStats] = {}
        self.gossip: dict[str, Gossip] = {}
        self.asked = 0
        for name in "abc":
            self.start(name, f"http://{name}")

    def start(self, name: str, url: str) -> None:
        """As a tracker starts: identity and counts from its file."""
        database = open_database(self.folder / f"{name}.db")
        saved = database.load(10)
        generation = next_generation(saved.generation, self.clock.wall)
        demand = self.demand[name] = DemandStats(wallet_of_tracker(name), generation, url)
        demand.import_rows(saved.demand, self.clock.wall)
        database.start(lambda call: call())
        database.keep_identity(demand.tracker_id, generation)
        database.close()
        following = {"a": "b", "b": "c", "c": "a"}[name]
        peers = [Wire(self.net, f"http://{following}")]
        self.net.at.pop(next((u for u, g in self.net.at.items() if g is self.gossip.get(name)), ""), None)
        self.gossip[name] = self.net.at[url] = Gossip(
            demand, peers, self.clock.now, lambda: self.clock.wall, Random(name), key_of(name)
        )

    def save(self, name: str) -> None:
        database = open_database(self.folder / f"{name}.db")
        database.start(lambda call: call())
        database.keep_demand(self.demand[name].export_rows(self.clock.wall), lambda: None)
        database.close()

    def ask(self, name: str, requests: int) -> None:
        for _ in range(requests):
            self.asked += 1
            self.demand[name].record(MODEL, f"call-{self.asked}", self.clock.wall)

    async def exchange(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            for gossip in self.gossip.values():
                await gossip.tick()

    def combined(self) -> dict[str, float]:
        return {
            name: demand.get_combined_stats(self.clock.wall).get(MODEL, {}).get("requests_last_hour", 0)
            for name, demand in self.demand.items()
        }


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


async def test_ring_adds_up_to_the_truth(mesh: Mesh) -> None:
    for name in "abc":
        mesh.ask(name, 1000)
    await mesh.exchange()
    assert mesh.combined() == {"a": 3000, "b": 3000, "c": 3000}
    mesh.net.duplicate = True
    await mesh.exchange(5)
    assert mesh.combined() == {"a": 3000, "b": 3000, "c": 3000}


async def test_killed_tracker_comes_back_within_its_unsaved_minute(mesh: Mesh) -> None:
    for name in "abc":
        mesh.ask(name, 900)
    mesh.save("b")
    mesh.clock.wall += 40
    mesh.ask("b", 100)  # never saved
    await mesh.exchange()
    assert set(mesh.combined().values()) == {2800}
    mesh.start("b", "http://b")  # kill -9: the file is 40 s old
    for _ in range(4):
        await mesh.exchange(1)
        assert all(2700 <= value <= 2800 for value in mesh.combined().values()), mesh.combined()
    assert set(mesh.combined().values()) == {2700}, "all agree; only what was unsaved is gone"
    mesh.ask("b", 50)
    await mesh.exchange()
    assert set(mesh.combined().values()) == {2750}


async def test_changed_address_neither_doubles_nor_loses(mesh: Mesh) -> None:
    for name in "abc":
        mesh.ask(name, 1000)
    await mesh.exchange()
    mesh.save("c")
    mesh.start("c", "http://c-moved")
    mesh.gossip["b"] = mesh.net.at["http://b"] = Gossip(
        mesh.demand["b"],
        [Wire(mesh.net, "http://c-moved")],
        mesh.clock.now,
        lambda: mesh.clock.wall,
        Random(1),
        key_of("b"),
    )
    await mesh.exchange(4)
    assert set(mesh.combined().values()) == {3000}


async def test_lost_answers_and_a_dead_peer_fade_with_the_window(mesh: Mesh) -> None:
    for name in "abc":
        mesh.ask(name, 1000)
    mesh.net.lose_answer = True
    await mesh.exchange(4)
    assert all(value <= 3000 for value in mesh.combined().values())
    mesh.net.lose_answer = False
    await mesh.exchange()
    del mesh.net.at["http://c"], mesh.gossip["c"], mesh.demand["c"]
    mesh.clock.wall += 61 * 60
    mesh.ask("a", 10)
    await mesh.exchange()
    assert mesh.combined() == {"a": 10, "b": 10}, "c's hour is over"


async def test_copied_file_is_noticed(mesh: Mesh) -> None:
    copied = Gossip(
        DemandStats(wallet_of_tracker("b"), int(NOW) + 99, "http://copy"),
        [Wire(mesh.net, "http://b")],
        mesh.clock.now,
        lambda: mesh.clock.wall,
        Random(1),
        key_of("b"),
    )
    await copied.tick()
    (peer,) = copied.peers()
    assert peer.up
    assert "our id" in mesh.gossip["b"]._merge(copied._message(), "http://copy")


async def test_peer_that_is_down_is_asked_ever_more_rarely_and_named(mesh: Mesh) -> None:
    del mesh.net.at["http://b"]
    gossip = mesh.gossip["a"]
    delays = []
    for _ in range(8):
        await gossip.tick()
        delays.append(gossip._delay_s(gossip._lines[0]))
    assert delays[0] > INTERVAL_S * 2 * 0.8 and max(delays) <= MOST_S * 1.2 and delays[-1] >= MOST_S * 0.8
    (peer,) = gossip.peers()
    assert not peer.up and "nobody at http://b" in peer.error and peer.age_s is None
    assert mesh.net.crossed == 8, "one round trip an interval"


async def test_clock_that_is_off_is_named(mesh: Mesh) -> None:
    message = mesh.gossip["b"]._message()
    late = GossipMessage(sender=message.sender, sent_at=NOW - 300, slices=message.slices)
    assert mesh.gossip["a"]._merge(late, "http://b") == "its clock is 300 s behind ours"


async def test_many_models_stay_below_the_cap(mesh: Mesh) -> None:
    for minute in range(60):
        for model in range(1000):
            mesh.demand["a"].record(f"model-{model}", f"c-{minute}-{model}", mesh.clock.wall)
        mesh.clock.wall += 60
    message = mesh.gossip["a"]._message()
    assert len(msgspec.json.encode(message)) < api.MAX_GOSSIP_BODY_BYTES
    mesh.gossip["b"].answer(message)
    assert len(mesh.demand["b"].get_combined_stats(mesh.clock.wall)) == 1000


async def test_over_http(running: Running) -> None:
    running.tracker.demand.record(MODEL, "call-1", running.tracker.clock.wall())
    other = DemandStats(wallet_of_tracker("other"), 1, "http://other:1")
    other.record(MODEL, "call-1", running.tracker.clock.wall())
    clock = running.tracker.clock
    gossip = Gossip(other, [running.client], clock.now, clock.wall, Random(1), key_of("other"))
    await gossip.tick()
    assert [peer.error for peer in gossip.peers()] == [""]
    stats = await running.client.stats()
    (model,) = stats.models
    assert model.rpm_last_hour * 60 == 1 and model.combined_rpm_last_hour * 60 == 2


async def test_peer_cannot_speak_for_a_third_tracker(mesh: Mesh) -> None:
    """It passes on what the third one signed; anything else is refused whole, and what was right stays."""
    for name in "bc":
        mesh.ask(name, 5)
    await mesh.exchange()
    by_url = {open_slice(text).url: text for text in mesh.gossip["b"]._message().slices}
    mine, third = by_url["http://b"], by_url["http://c"]
    key, signature, body = third.split(".", 2)
    assert open_slice(third).tracker_id == wallet_of_tracker("c")
    changed = body.replace('"seq":', '"seq":9')
    own_key = mine.split(".", 2)[0]
    before = mesh.combined()
    for forged in (
        f"{key}.{signature}.{changed}",
        f"{key}.{signed_text('b', body.encode()).split('.')[1]}.{body}",
        f"{own_key}.{signature}.{body}",
        f"{key}..{body}",
        body,
        "",
    ):
        message = GossipMessage(sender=wallet_of_tracker("b"), sent_at=NOW, slices=(mine, forged))
        with pytest.raises(InvalidRequest) as caught:
            mesh.gossip["a"].answer(message)
        assert caught.value.code == "bad_slice"
    await mesh.exchange()
    assert mesh.combined() == before


async def test_what_a_peer_makes_up_stands_under_its_own_id(mesh: Mesh) -> None:
    mesh.ask("c", 5)
    await mesh.exchange()
    forged = signed_text("b", msgspec.json.encode({"generation": 2**52, "seq": 1, "url": "http://c", "models": {}}))
    mesh.gossip["a"].answer(GossipMessage(sender=wallet_of_tracker("c"), sent_at=NOW, slices=(forged,)))
    assert mesh.combined()["a"] == 5, "c's own slice stands, though the forged one calls itself newer"


async def test_a_peer_that_makes_up_trackers_keeps_no_other_peer_out(mesh: Mesh) -> None:
    """Sixty-four of them, refreshed at each exchange, by the key of a peer that asks us."""
    body = {"generation": 1, "seq": 1, "url": "", "models": {MODEL: {"per_minute": {str(int(NOW // 60)): 1}}}}
    made_up = tuple(signed_text(f"made up {number}", msgspec.json.encode(body)) for number in range(MAX_PEERS))
    message = GossipMessage(sender="whoever", sent_at=NOW, slices=made_up)
    for name in "bc":
        mesh.ask(name, 500)
    for _ in range(3):
        mesh.gossip["a"].answer(message, "key-of-the-liar")
        await mesh.gossip["b"].tick()  # c's slice comes to us through b
        await mesh.gossip["a"].tick()
    mesh.gossip["a"].answer(message, "key-of-the-liar")
    assert mesh.combined()["a"] == 1000 + MAX_PEERS - 2
    assert [peer.error for peer in mesh.gossip["a"].peers()] == [""]


async def test_slices_pass_through_strangers_as_they_were_signed(mesh: Mesh) -> None:
    mesh.ask("c", 5)
    await mesh.gossip["c"].tick()  # to a
    passed_on = [text for text in mesh.gossip["a"]._message().slices if open_slice(text).url == "http://c"]
    assert len(passed_on) == 1
    for _ in range(2):
        mesh.gossip["b"].answer(GossipMessage(sender=wallet_of_tracker("a"), sent_at=NOW, slices=tuple(passed_on)))
    assert mesh.combined()["b"] == 5 and passed_on[0] in mesh.gossip["b"]._message().slices


async def test_tracker_without_a_key_vouches_for_nothing(running: Running) -> None:
    running.tracker.demand.record(MODEL, "call-1", running.tracker.clock.wall())
    answer = await running.client.gossip(GossipMessage(sender="some-tracker", sent_at=0.0, slices=()))
    assert answer.slices == ()


@pytest.mark.parametrize(
    "models",
    [
        {"m": {"per_minute": {"-1": 5}}},
        {"m": {"per_minute": {"x": 5}}},
        {"m": {"per_minute": {str(i): 1 for i in range(70)}}},
        {"M!": {"per_minute": {"1": 5}}},
        {"m": {"per_century": {"1": 5}}},
        {"m": {"per_minute": {"1": 10**12}}},
    ],
)
async def test_slices_beyond_bounds_are_refused_whoever_signs(running: Running, models: dict[str, object]) -> None:
    content = msgspec.json.encode({"generation": 1, "seq": 1, "url": "", "models": models})
    body = {"sender": "stranger-1", "sent_at": 0.0, "slices": [signed_text("stranger", content)]}
    async with open_http() as http:
        response = await http.post(running.url + api.GOSSIP, json=body)
    assert response.status_code == 400, response.text
    assert (await running.client.stats()).models == ()


async def test_peers_of_two_real_trackers_show_up() -> None:
    async with run_tracker() as first, run_tracker() as second, open_http() as http:
        second.tracker.demand.tracker_id = "second-tracker"
        gossip = Gossip(
            first.tracker.demand,
            [TrackerClient(http, second.url), TrackerClient(http, "http://127.0.0.1:9")],
            first.tracker.clock.now,
            first.tracker.clock.wall,
            Random(1),
        )
        await gossip.tick()
        up, down = gossip.peers()
        assert (up.up, up.tracker_id, down.up) == (True, "second-tracker", False)
        assert issubclass(Unreachable, MeshnetError) and "not reachable" in down.error
