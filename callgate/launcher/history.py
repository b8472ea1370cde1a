"""Which runs there were and how each ended: one small SQLite file, shared by a host's processes.

IO, blocking: call it from a thread. A run is written when it starts and again when it ends.
A run whose callgate was killed has no second entry; whoever reads it finds its owner gone
and says `parent_exit`, which is what the warden did. Rows are bounded: the oldest go first,
those that ended before those that did not. Commands, environments and output never come
here; names and numbers do.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.files import secure_database

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ROWS = 10_000
"""Months of an agent that restarts a few times a day; about 5 MB."""
BUSY_TIMEOUT_S = 2.0
"""Longer than any other process holds the file; a run's start can wait that long."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
    run_id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    state TEXT NOT NULL,
    stop_reason TEXT,
    exit_code INTEGER,
    signal INTEGER,
    usage TEXT NOT NULL,
    "limit" TEXT,
    effective TEXT NOT NULL,
    owner_pid INTEGER NOT NULL,
    owner_started REAL NOT NULL
) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS run_started ON run (started_ms)"
_PRUNE = """
DELETE FROM run WHERE run_id IN (
    SELECT run_id FROM run ORDER BY ended_ms IS NULL DESC, started_ms DESC LIMIT -1 OFFSET ?
)
"""


class RunRecord(msgspec.Struct, frozen=True):
    """One run. Times are milliseconds since 1970; `usage` and `limit` have units in names."""

    run_id: str
    agent: str
    started_ms: int
    state: str
    ended_ms: int | None = None
    stop_reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: dict[str, Any] = {}
    limit: dict[str, Any] | None = None
    effective: dict[str, Any] = {}


def default_path() -> Path:
    """Where the history of this user is."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "callgate" / "runs.sqlite"


class History:
    """The file. Any number of threads and processes may use it at once.

    Raises `UnsafePath` if anybody else could have made or could change it.
    """

    def __init__(self, path: Path, max_rows: int = MAX_ROWS) -> None:
        secure_database(path)
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        # No WAL: the switch to it fails at once, without a wait, when two processes are first.
        try:
            with self._writing() as cursor:
                cursor.execute(_SCHEMA)
                cursor.execute(_INDEX)
        except BaseException:
            self._db.close()
            raise

    def put(self, record: RunRecord) -> None:
        """Write a run down, or what is known of it now."""
        row = (
            record.run_id,
            record.agent,
            record.started_ms,
            record.ended_ms,
            record.state,
            record.stop_reason,
            record.exit_code,
            record.signal,
            _text(record.usage),
            None if record.limit is None else _text(record.limit),
            _text(record.effective),
            *_identity(os.getpid()),
        )
        marks = ", ".join("?" * len(row))
        with self._writing() as cursor:
            cursor.execute(f"INSERT OR REPLACE INTO run VALUES ({marks})", row)  # noqa: S608
            cursor.execute(_PRUNE, (self._max_rows,))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Cursor]:
        with self._lock, closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                cursor.execute("ROLLBACK")
                raise

    def recent(self, limit: int, agent: str | None = None) -> list[RunRecord]:
        """The last runs, the newest first."""
        query = "SELECT * FROM run WHERE ? IS NULL OR agent = ? ORDER BY started_ms DESC, run_id "
        with self._lock, closing(self._db.cursor()) as cursor:
            rows = cursor.execute(query + "DESC LIMIT ?", (agent, agent, limit)).fetchall()
        owners: dict[tuple[int, float], bool] = {}
        return [_record(row, owners) for row in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _record(row: tuple[Any, ...], owners: dict[tuple[int, float], bool]) -> RunRecord:
    *values, usage, limit, effective, owner_pid, owner_started = row
    run_id, agent, started_ms, ended_ms, state, stop_reason, exit_code, signal = values
    if ended_ms is None:
        owner = owner_pid, owner_started
        if owner not in owners:
            owners[owner] = _identity(owner_pid) == owner
        if not owners[owner]:
            state, stop_reason = "stopped", "parent_exit"
    return RunRecord(
        run_id=run_id,
        agent=agent,
        started_ms=started_ms,
        state=state,
        ended_ms=ended_ms,
        stop_reason=stop_reason,
        exit_code=exit_code,
        signal=signal,
        usage=msgspec.json.decode(usage),
        limit=None if limit is None else msgspec.json.decode(limit),
        effective=msgspec.json.decode(effective),
    )


def _identity(pid: int) -> tuple[int, float]:
    """A process for good: numbers are used again, and then the start differs."""
    import psutil  # noqa: PLC0415  # 12 ms, which the start of a gate need not wait for

    try:
        return pid, psutil.Process(pid).create_time()
    except psutil.Error:
        return pid, 0.0


def _text(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
