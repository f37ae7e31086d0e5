"""The statistics file: what comes back, what a crash costs, what happens when it is locked, full or damaged."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons.tracker import repair, store
from daemons.tracker.calls import CallWall
from daemons.tracker.events import EventLog
from daemons.tracker.keeping import LOST_IDS, restore
from daemons.tracker.store import Database, Saved, open_database
from meshnet.domain.demand import DemandStats
from meshnet.domain.errors import StartError

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tracker.db"


class Waiting:
    """Callbacks of the writer's thread, and a way to wait for them without sleeping."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._changed = threading.Condition()

    def note(self, number: int) -> Callable[[], None]:
        def call() -> None:
            with self._changed:
                self.seen.append(number)
                self._changed.notify_all()

        return call

    def until(self, count: int) -> list[int]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, 10.0), self.seen
            return list(self.seen)


def opened(path: Path | None) -> tuple[Database, Waiting]:
    database = open_database(path)
    database.start(lambda call: call())
    return database, Waiting()


def reopened(path: Path, max_calls: int = 100) -> Saved:
    database = open_database(path)
    try:
        return database.load(max_calls)
    finally:
        database.close()


def counted(requests: int, model: str = "m", tracker_id: str = "tracker1") -> DemandStats:
    demand = DemandStats(tracker_id, 1, "")
    for number in range(requests):
        demand.record(model, f"call-{number}", NOW)
    return demand


def test_everything_comes_back(path: Path) -> None:
    database, waiting = opened(path)
    database.keep_identity("tracker1", 7)
    database.keep_event(1, NOW, b"one", waiting.note(1))
    database.keep_call(5, NOW, b"five")
    database.keep_demand(counted(3).export_rows(NOW), waiting.note(2))
    row = ("call-1", 0, 1, NOW, "m", "w.0-29", "w", 0, 29, 10, 0, 300, 0, "complete")
    database.keep_usage([row, (*row[:1], 1, *row[2:])])
    database.keep_usage([row])
    database.close()
    saved = reopened(path)
    assert (saved.tracker_id, saved.generation, saved.was_closed) == ("tracker1", 7, True)
    assert (saved.events, saved.last_event) == ([b"one"], 1)
    assert (saved.calls, saved.last_seq) == ([b"five"], 5)
    assert {row[:2] for row in saved.demand} == {("m", "per_minute"), ("m", "per_hour"), ("m", "per_day")}
    assert saved.usage_totals == [("w", "m", 1, 20, 0, 600, 0)], "unique by call, hop and attempt"
    back = DemandStats("tracker1", 8, "")
    assert back.import_rows(saved.demand, NOW) == 0
    assert back.get_own_stats(NOW)["m"]["requests_last_hour"] == 3


def test_event_is_seen_after_its_commit_and_in_order(path: Path) -> None:
    database, waiting = opened(path)
    reader = sqlite3.connect(path)
    on_disk: list[int] = []

    def look(number: int) -> Callable[[], None]:
        def call() -> None:
            with sqlite3.connect(path) as connection:
                on_disk.append(connection.execute("SELECT COUNT(*) FROM events WHERE id = ?", (number,)).fetchone()[0])
            connection.close()
            waiting.note(number)()

        return call

    for number in range(1, 21):
        database.keep_event(number, NOW, b"x", look(number))
    assert waiting.until(20) == list(range(1, 21))
    assert on_disk == [1] * 20
    reader.close()
    database.close()


@pytest.fixture
def locked(path: Path) -> Iterator[tuple[Database, Waiting, sqlite3.Connection]]:
    database, waiting = opened(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield database, waiting, other
    other.close()
    database.close()


def test_locked_file_warns_keeps_going_and_catches_up(
    path: Path, locked: tuple[Database, Waiting, sqlite3.Connection], caplog: pytest.LogCaptureFixture
) -> None:
    database, waiting, other = locked
    caplog.set_level(logging.WARNING, logger="daemons.tracker.store")
    database.keep_event(1, NOW, b"one", waiting.note(1))
    assert waiting.until(1) == [1], "people see it although the disk does not have it"
    assert "locked" in database.status and "wait in memory" in database.status
    database.keep_event(2, NOW, b"two", waiting.note(2))
    database.keep_demand(counted(4).export_rows(NOW), waiting.note(99))
    assert waiting.until(2)[:2] == [1, 2]
    other.execute("COMMIT")
    waiting.until(3)
    assert database.status == "ok"
    assert "cannot be written" in caplog.text
    database.close()
    saved = reopened(path)
    assert saved.events == [b"one", b"two"] and saved.demand


def test_full_disk_is_said_and_what_waits_is_bounded(path: Path) -> None:
    database, waiting = opened(path)
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count={pages}")
    database.keep_event(1, NOW, b"x" * 1_000_000, waiting.note(1))
    assert waiting.until(1) == [1]
    assert "full" in database.status
    for number in range(store.MAX_WAITING + 10):
        database.keep_call(number, NOW, b"")
    assert "lost" in database.status
    database.close()


def test_damaged_file_is_named_refused_and_untouched(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, _ = opened(path)
    database.keep_demand(counted(1000).export_rows(NOW), lambda: None)
    for number in range(200):
        database.keep_event(number, NOW, b"y" * 500, lambda: None)
    database.close()
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 8] = b"\xff" * (4096 * 7)
    path.write_bytes(data)
    with pytest.raises(StartError, match=r"tracker.db is damaged .*doctor --repair-db"):
        open_database(path)
    assert path.read_bytes() == data
    assert repair.main([str(path)]) == 0
    assert "set" not in capsys.readouterr().err
    (aside,) = path.parent.glob("tracker.db.damaged-*")
    assert aside.read_bytes() == data and not path.exists()
    database, _ = opened(path)
    database.close()


def test_text_file_is_no_database(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("these are my notes, not yours" * 100)
    with pytest.raises(StartError, match="damaged"):
        open_database(path)


def test_sound_file_is_not_set_aside(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, _ = opened(path)
    database.close()
    assert repair.main([str(path)]) == 0 and "is sound" in capsys.readouterr().out and path.exists()


def test_newer_version_is_refused(path: Path) -> None:
    database, _ = opened(path)
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StartError, match="version 99"):
        open_database(path)


KILLED = """
import sys, threading
from pathlib import Path
from daemons.tracker.store import open_database
from tests.tracker.test_store import counted, NOW
database = open_database(Path(sys.argv[1]))
database.start(lambda call: call())
saved = threading.Event()
database.keep_identity("tracker1", 1)
database.keep_demand(counted(40).export_rows(NOW), saved.set)
saved.wait()
database.keep_demand(counted(90).export_rows(NOW), lambda: None)
print("saved", flush=True)
threading.Event().wait()
"""


def test_kill_9_keeps_the_last_save(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    saved = reopened(path)
    assert not saved.was_closed
    back = DemandStats("tracker1", 2, "")
    back.import_rows(saved.demand, NOW)
    assert back.get_own_stats(NOW)["m"]["requests_last_hour"] in (40, 90)


def test_ids_never_come_twice_after_a_crash() -> None:
    log = EventLog(lambda: NOW)
    restore(Saved(last_event=12, was_closed=False), DemandStats("t", 1, ""), wall(), log, NOW)
    assert log.add("x").id == 12 + LOST_IDS + 1


def test_calls_and_ids_go_on_after_a_clean_stop() -> None:
    log, calls = EventLog(lambda: NOW), wall()
    unread = restore(Saved(last_event=12, last_seq=30, calls=[b"no json"]), DemandStats("t", 1, ""), calls, log, NOW)
    assert unread == 1 and log.add("x").id == 13 and calls.next_seq() == 31
    assert [event.id for event in log.after(12)] == [13] and log.after(13) == []


def wall() -> CallWall:
    return CallWall(lambda: 0.0, 10, lambda node_id: "")


def test_thousand_models_load_within_a_second(path: Path) -> None:
    demand = DemandStats("tracker1", 1, "")
    for minute in range(60):
        for model in range(1000):
            demand.record(f"model-{model}", f"call-{minute}-{model}", NOW + 60 * minute)
    database, waiting = opened(path)
    database.keep_demand(demand.export_rows(NOW + 3600), waiting.note(1))
    waiting.until(1)
    database.close()
    started = time.perf_counter()
    saved = reopened(path)
    back = DemandStats("tracker1", 2, "")
    back.import_rows(saved.demand, NOW + 3600)
    took_s = time.perf_counter() - started
    assert len(saved.demand) > 60_000
    assert took_s < 1.0, f"{took_s:.2f} s"


def test_old_rows_go(path: Path) -> None:
    database, waiting = opened(path)
    for number in range(1, 6):
        database.keep_call(number, NOW, b"%d" % number)
        database.keep_event(number, NOW if number > 2 else NOW - 8 * 86_400, b"%d" % number, waiting.note(number))
    database.prune(NOW, last_event=5, last_seq=5, max_calls=3)
    database.close()
    saved = reopened(path)
    assert saved.calls == [b"3", b"4", b"5"] and saved.events == [b"3", b"4", b"5"]
