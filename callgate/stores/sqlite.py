"""Where quotas are written down: one small SQLite file, shared by the processes of a host.

IO, blocking: call it from a thread. A block is committed before it is handed out, with full
synchronisation, so neither a crash nor a power cut can give budget back.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from callgate.files import secure_database
from callgate.model import MAX_LIVE, OTHERS

if TYPE_CHECKING:
    from pathlib import Path

BUSY_TIMEOUT_S = 2.0
"""How long another process may hold the file before the store counts as unavailable."""
_RETRY_S = 0.005
"""Between two tries where SQLite does not wait by itself: about one transaction."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS quota (
    space TEXT NOT NULL,
    caller TEXT NOT NULL,
    period_ns INTEGER NOT NULL,
    window INTEGER NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (space, caller, period_ns)
) WITHOUT ROWID
"""


class QuotaStore:
    """What each caller has spent. `space` keeps the callers of two policies apart.

    Raises `UnsafePath` if anybody else could have made or could change the file.
    """

    def __init__(self, path: Path, space: str, max_rows: int = MAX_LIVE) -> None:
        secure_database(path)
        self._space = space
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._share()
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_SCHEMA)
        except BaseException:
            self._db.close()
            raise

    def _share(self) -> None:
        """Let processes read and write at once.

        SQLite does not wait for a lock here as it does elsewhere; of processes that start
        together some would fail.
        """
        give_up = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def reserve(self, caller: str, window: int, block: int, limit: int, period_ns: int) -> int:
        """Write off up to `block` calls of `window` and return how many it could be.

        A window older than the one on record gets nothing: the clock was set back, and the
        budget of the present window may be spent already.
        """
        with self._lock, closing(self._db.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                granted = self._reserve(cursor, caller, window, block, limit, period_ns)
                cursor.execute("COMMIT")
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            return granted

    def _reserve(
        self,
        cursor: sqlite3.Cursor,
        caller: str,
        window: int,
        block: int,
        limit: int,
        period_ns: int,
    ) -> int:
        caller = self._row_for(cursor, caller, window, period_ns)
        row = cursor.execute(
            "SELECT window, used FROM quota WHERE space = ? AND caller = ? AND period_ns = ?",
            (self._space, caller, period_ns),
        ).fetchone()
        used = 0
        if row is not None:
            if row[0] > window:
                return 0
            used = row[1] if row[0] == window else 0
        granted = max(0, min(block, limit - used))
        cursor.execute(
            "INSERT OR REPLACE INTO quota VALUES (?, ?, ?, ?, ?)",
            (self._space, caller, period_ns, window, used + granted),
        )
        return granted

    def _row_for(self, cursor: sqlite3.Cursor, caller: str, window: int, period_ns: int) -> str:
        """The caller's own row, or the shared one when strangers have filled the table.

        Names that the policy states never share; pseudonyms of strangers begin with `~`.
        """
        if not caller.startswith("~"):
            return caller
        known = cursor.execute(
            "SELECT 1 FROM quota WHERE space = ? AND caller = ? AND period_ns = ?",
            (self._space, caller, period_ns),
        ).fetchone()
        if known is not None or self._rows(cursor) < self._max_rows:
            return caller
        begun_ns = window * period_ns
        cursor.execute("DELETE FROM quota WHERE (window + 1) * period_ns <= ?", (begun_ns,))
        return caller if self._rows(cursor) < self._max_rows else OTHERS

    def _rows(self, cursor: sqlite3.Cursor) -> int:
        (rows,) = cursor.execute("SELECT COUNT(*) FROM quota").fetchone()
        return int(rows)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
