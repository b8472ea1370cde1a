"""Writes runs into the history, in order and beside everything else.

The file is shared with every other callgate of this user, and SQLite waits for its lock: nobody
whose agent has died waits for that.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from callgate.launcher.history import History, RunRecord

MAX_WAITING: Final = 64
"""Beyond it the oldest are not written: a history that stays locked costs no memory."""
LAST_S: Final = 3.0
"""For the last ones, when all is over; a locked file is tried for 2 s."""


class Chronicle:
    """One agent's runs on their way into the history; None writes nothing."""

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._waiting: deque[RunRecord] = deque(maxlen=MAX_WAITING)
        self._task: asyncio.Task[None] | None = None

    def put(self, record: RunRecord) -> None:
        """Write a run down soon; one that cannot be written is no reason not to run."""
        if self._history is None:
            return
        self._waiting.append(record)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(self._history))

    async def close(self) -> None:
        """Wait until what there is to write is written, or cannot be."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=LAST_S)

    async def _write(self, history: History) -> None:
        try:
            while self._waiting:
                record = self._waiting.popleft()
                with suppress(sqlite3.Error, OSError):
                    await asyncio.to_thread(history.put, record)
        finally:
            self._task = None
