"""What a tracker remembers across restarts, in one SQLite file: one writer thread, one connection.

Writes are queued from the event loop and never awaited by a client: whatever queued up while one commit ran goes into
the next (group commit; WAL, synchronous FULL). While the file is locked or its disk full, writes wait in memory, the
status says so, and they are caught up with later. A damaged file is named and refused, never replaced.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshnet.domain.demand import BucketRow
from meshnet.domain.errors import StartError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
START_BUSY_S = 5.0
"""How long a start waits for whoever holds the file: a backup does for a moment, another tracker for ever."""
BUSY_S = 0.25
"""How long one write does: longer only delays the warning."""
RETRY_S = 1.0
"""Between two tries while the file cannot be written."""
MAX_WAITING = 50_000
"""Writes kept in memory meanwhile, about 50 MB: an hour of 2 calls a second. Beyond it the oldest are lost, counted."""
GATHER_S = 0.05
"""From the first write that waits to its commit: what comes meanwhile goes with it. Every commit waits for the disk
and takes a turn of the processor from the calls; raising it shows events later and loses more of them in a crash."""
CLOSE_S = 3.0
"""How long a stop waits for the last commit; the whole stop is promised within 5 s."""
EVENT_DAYS, CALL_DAYS, USAGE_DAYS = 7, 30, 400
"""Age at which rows go. Events and calls also go by count."""
DAY_S = 86_400.0
MAX_EVENTS = 10_000
SHOWN_USAGE_ROWS = 500
"""Newest rows of the ledger loaded at a start; the sums are over all."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS model_rpm_buckets (
    model TEXT NOT NULL, window TEXT NOT NULL, bucket_idx INTEGER NOT NULL, bucket_epoch INTEGER NOT NULL,
    count INTEGER NOT NULL, PRIMARY KEY (model, window, bucket_idx)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (seq INTEGER PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS usage (
    call_id TEXT NOT NULL, hop INTEGER NOT NULL, attempt INTEGER NOT NULL, at REAL NOT NULL, model_key TEXT NOT NULL,
    node_id TEXT NOT NULL, wallet TEXT NOT NULL, start_layer INTEGER NOT NULL, end_layer INTEGER NOT NULL,
    tokens INTEGER NOT NULL, replayed_tokens INTEGER NOT NULL, work_units INTEGER NOT NULL,
    price_micro_units INTEGER NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (call_id, hop, attempt)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_at ON usage (at);
"""
USAGE_COLUMNS = (
    "call_id, hop, attempt, at, model_key, node_id, wallet, start_layer, end_layer, tokens, replayed_tokens, "
    "work_units, price_micro_units, outcome"
)
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """What a start finds. Bodies are JSON as written, oldest first."""

    tracker_id: str | None = None
    generation: int | None = None
    was_closed: bool = True
    """False: the last life ended without a word, and events may have been seen that were never written."""
    demand: Sequence[BucketRow] = ()
    calls: Sequence[bytes] = ()
    last_seq: int = 0
    events: Sequence[bytes] = ()
    last_event: int = 0
    usage: Sequence[Row] = ()
    """The newest rows in the order of USAGE_COLUMNS, newest first."""
    usage_totals: Sequence[Row] = ()
    """wallet, model_key, calls, tokens, replayed_tokens, work_units, price."""


@dataclass(slots=True)
class _Write:
    sql: str
    rows: Sequence[Row]
    on_seen: Callable[[], None] | None = field(default=None)


class Database:
    """Make it with ``open_database``. ``status`` is "ok" or what is wrong, in words."""

    def __init__(self, path: Path | None, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._changed = threading.Condition()
        self._waiting: deque[_Write] = deque()
        self._demand: Sequence[BucketRow] | None = None
        self._saved_demand: Callable[[], None] | None = None
        self._closing = threading.Event()
        self._lost = 0
        self._trouble = ""
        self._post: Callable[[Callable[[], None]], object] = lambda call: call()
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> str:
        if not self._trouble:
            return "ok"
        lost = f", {self._lost} lost" if self._lost else ""
        return f"{self.path} cannot be written ({self._trouble}): {len(self._waiting)} rows wait in memory{lost}"

    def start(self, post: Callable[[Callable[[], None]], object]) -> None:
        """Begin to write. ``post`` runs a callback in the owner's thread (``loop.call_soon_threadsafe``)."""
        self._post = post
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def load(self, max_calls: int) -> Saved:
        """All that is kept. Call it before ``start``."""
        with self._connection as db:
            identity = dict(db.execute("SELECT key, value FROM identity"))
            calls = db.execute("SELECT body FROM calls ORDER BY seq DESC LIMIT ?", (max_calls,)).fetchall()
            events = db.execute("SELECT body FROM events ORDER BY id DESC LIMIT ?", (MAX_EVENTS,)).fetchall()
            return Saved(
                identity.get("tracker_id"),
                int(identity["generation"]) if "generation" in identity else None,
                identity.get("closed", "1") == "1",
                db.execute("SELECT model, window, bucket_idx, bucket_epoch, count FROM model_rpm_buckets").fetchall(),
                [body for (body,) in reversed(calls)],
                db.execute("SELECT COALESCE(MAX(seq), 0) FROM calls").fetchone()[0],
                [body for (body,) in reversed(events)],
                db.execute("SELECT COALESCE(MAX(id), 0) FROM events").fetchone()[0],
                db.execute(
                    f"SELECT {USAGE_COLUMNS} FROM usage ORDER BY at DESC LIMIT ?", (SHOWN_USAGE_ROWS,)
                ).fetchall(),
                db.execute(
                    "SELECT wallet, model_key, COUNT(DISTINCT call_id), SUM(tokens), SUM(replayed_tokens), "
                    "SUM(work_units), SUM(work_units * price_micro_units) FROM usage GROUP BY wallet, model_key"
                ).fetchall(),
            )

    def keep_identity(self, tracker_id: str, generation: int) -> None:
        rows = [("tracker_id", tracker_id), ("generation", str(generation)), ("closed", "0")]
        self._put(_Write("INSERT OR REPLACE INTO identity VALUES (?, ?)", rows))

    def keep_event(self, event_id: int, at: float, body: bytes, on_seen: Callable[[], None]) -> None:
        """``on_seen`` runs after the commit; while nothing can be written, at once."""
        self._put(_Write("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", [(event_id, at, body)], on_seen))

    def keep_call(self, seq: int, at: float, body: bytes) -> None:
        self._put(_Write("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", [(seq, at, body)]))

    def keep_usage(self, rows: Sequence[Row]) -> None:
        """Rows in the order of USAGE_COLUMNS; one that is there already stays."""
        marks = ", ".join("?" * len(USAGE_COLUMNS.split(",")))
        self._put(_Write(f"INSERT OR IGNORE INTO usage ({USAGE_COLUMNS}) VALUES ({marks})", rows))

    def keep_demand(self, rows: Sequence[BucketRow], on_saved: Callable[[], None]) -> None:
        """Replace the table by these rows, in one transaction. Only the newest of several that wait is written."""
        with self._changed:
            self._demand, self._saved_demand = rows, on_saved
            self._changed.notify()

    def prune(self, now_wall: float, last_event: int, last_seq: int, max_calls: int) -> None:
        """Let go of what is too old or too much."""
        for sql, row in (
            ("DELETE FROM events WHERE id <= ? OR at < ?", (last_event - MAX_EVENTS, now_wall - EVENT_DAYS * DAY_S)),
            ("DELETE FROM calls WHERE seq <= ? OR at < ?", (last_seq - max_calls, now_wall - CALL_DAYS * DAY_S)),
            ("DELETE FROM usage WHERE at < ?", (now_wall - USAGE_DAYS * DAY_S,)),
        ):
            self._put(_Write(sql, [row]))

    def close(self) -> None:
        """Write what waits, and that this was a clean end. Blocks, CLOSE_S at most. Again is nothing."""
        if self._closing.is_set():
            return
        self._put(_Write("INSERT OR REPLACE INTO identity VALUES (?, ?)", [("closed", "1")]))
        with self._changed:
            self._closing.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive() or self._trouble:
                log.error("statistics not saved at stop status=%s", self.status)
        else:
            self._connection.close()

    # ---- both threads, under the lock

    def _put(self, write: _Write) -> None:
        with self._changed:
            if self._trouble and write.on_seen is not None:
                self._post(write.on_seen)
                write.on_seen = None
            self._waiting.append(write)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._lost += 1
            self._changed.notify()

    # ---- in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._demand is not None or self._closing.is_set()):
                    self._changed.wait()
            self._closing.wait(GATHER_S)
            with self._changed:
                writes, self._waiting = list(self._waiting), deque()
                demand, self._demand = self._demand, None
                on_saved, closing = self._saved_demand, self._closing.is_set()
            is_written = self._commit(writes, demand, on_saved)
            if closing and (not is_written or self._is_empty()):
                self._end()
                return
            if not is_written:
                with self._changed:
                    self._changed.wait_for(self._closing.is_set, RETRY_S)

    def _commit(
        self, writes: list[_Write], demand: Sequence[BucketRow] | None, on_saved: Callable[[], None] | None
    ) -> bool:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for write in writes:
                self._connection.executemany(write.sql, write.rows)
            if demand is not None:
                self._connection.execute("DELETE FROM model_rpm_buckets")
                self._connection.executemany("INSERT INTO model_rpm_buckets VALUES (?, ?, ?, ?, ?)", demand)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            self._failed(error, writes, demand)
            return False
        self._written(writes, on_saved if demand is not None else None)
        return True

    def _written(self, writes: list[_Write], on_saved: Callable[[], None] | None) -> None:
        with self._changed:
            trouble, self._trouble = self._trouble, ""
            seen = [write.on_seen for write in writes if write.on_seen is not None]
        if trouble:
            log.warning("statistics are written again file=%s rows=%d lost=%d", self.path, len(writes), self._lost)
        self._tell([*seen, *([on_saved] if on_saved is not None else [])])

    def _failed(self, error: sqlite3.Error, writes: list[_Write], demand: Sequence[BucketRow] | None) -> None:
        with self._changed:
            is_new, self._trouble = not self._trouble, str(error)
            self._waiting.extendleft(reversed(writes))
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._lost += 1
            self._demand = demand if self._demand is None else self._demand
            # Nobody waits for a disk: what happened is shown, though a crash now would forget it.
            seen = [write.on_seen for write in self._waiting if write.on_seen is not None]
            for write in self._waiting:
                write.on_seen = None
            self._tell(seen)
        if is_new:
            log.warning("statistics cannot be written, kept in memory file=%s reason=%s", self.path, error)

    def _tell(self, calls: Sequence[Callable[[], None]]) -> None:
        if not calls:
            return

        def run() -> None:
            for call in calls:
                call()

        try:
            self._post(run)
        except RuntimeError:
            log.info("event loop ended while the store wrote")

    def _is_empty(self) -> bool:
        with self._changed:
            return not self._waiting and self._demand is None

    def _end(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def open_database(path: Path | None) -> Database:
    """The file, made if there is none; None: in memory, for tests. Raises StartError naming a file that is damaged,
    held by another process, or made by a newer version."""
    if path is None:
        connection = _connect(":memory:")
        _prepare(connection, None)
        return Database(None, connection)
    with _start_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(str(path))
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return Database(path, connection)


def check(path: Path) -> str:
    """ "" for a sound or absent file, else what is wrong with it."""
    if not path.exists():
        return ""
    try:
        open_database(path).close()
    except StartError as error:
        return error.message
    return ""


def _connect(path: str) -> sqlite3.Connection:
    # Made in the starting thread, used by the writer's alone after that.
    return sqlite3.connect(path, timeout=START_BUSY_S, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.replace("*", "").split()))  # One line for people.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise StartError(f"{path} has version {version}; this meshnet reads {SCHEMA_VERSION}. Use another --stats-db.")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
    connection.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")


@contextlib.contextmanager
def _start_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "Is another tracker running with it?" if "locked" in str(error) else "Use another --stats-db."
        raise StartError(f"Cannot use the statistics file {path}: {error}. {hint}") from None
    except sqlite3.DatabaseError as error:
        raise StartError(
            f"The statistics file {path} is damaged ({error}). Nothing was changed. `meshnet doctor --repair-db` sets "
            "it aside and the tracker begins a new one; its counts, calls and ledger are then missing.",
            code="damaged_database",
        ) from None
    except OSError as error:
        raise StartError(f"Cannot use the statistics file {path}: {error.strerror}.") from None
