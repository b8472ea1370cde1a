"""The runs of agents, put together from the records of their starts, warnings and ends.

Pure. A run without an end runs if its writer does: a process that began to write in the same
writer later, or a writer that nobody holds, means that the callgate of that run is gone, and with
it the run.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from callgate.past.rows import Row

STARTED: Final = "agent.run_started"
ENDS: Final = {
    "agent.run_stopped": "stopped",
    "agent.run_crashed": "crashed",
    "agent.run_paused": "paused",
}
EVENTS: Final = frozenset({STARTED, *ENDS, "agent.resource_warning", "agent.containment_degraded"})
STATES: Final = ("running", "stopped", "crashed", "paused", "lost")
MAX_RUNS: Final = 10_000
MAX_NOTES: Final = 50
"""Of one run; there are fewer features than that."""


class RunRow(msgspec.Struct, gc=False):
    """One run. Times are as records have them."""

    run_id: str
    agent: str
    started: str
    state: str = "running"
    reason: str | None = None
    ended: str | None = None
    lasted_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None
    limit: str | None = None
    """The limit that ended it."""
    usage: int | None = None
    usage_limit: int | None = None
    warnings: list[str] = []
    """Limits that it came close to."""
    degraded: list[str] = []
    """What was asked for of its containment and did not hold."""


class Runs:
    """Collects runs from the records of one writer after the other."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRow] = {}
        self._open: set[str] = set()
        """Those of the current writer that have no end yet."""

    def add(self, row: Row) -> None:
        """Take one record of `EVENTS`, or `audit.started`."""
        if row.event == "audit.started":
            if row.prev is None:  # no header of a segment: a process begins to write
                self.writer_ended(live=False)
            return
        if row.run_id is None:
            return
        run = self._runs.get(row.run_id)
        if run is None or row.event == STARTED:
            self._bound()
            run = self._runs[row.run_id] = RunRow(row.run_id, row.agent or "?", row.ts)
            self._open.add(row.run_id)
        if row.event in ENDS:
            self._end(run, row)
        elif row.event == "agent.resource_warning" and len(run.warnings) < MAX_NOTES:
            run.warnings = [*run.warnings, row.limit or "?"]
        elif row.event == "agent.containment_degraded" and len(run.degraded) < MAX_NOTES:
            run.degraded = [*run.degraded, f"{row.limit or '?'}: {row.code or '?'}"]

    def _end(self, run: RunRow, row: Row) -> None:
        self._open.discard(run.run_id)
        run.state, run.reason, run.ended = ENDS[row.event], row.code, row.ts
        run.exit_code, run.signal = row.exit_code, row.signal
        run.cpu_ms, run.memory_peak_bytes = row.cpu_ms, row.memory_peak_bytes
        run.limit, run.usage, run.usage_limit = row.limit, row.usage, row.usage_limit
        run.lasted_ms = row.duration_ms
        if row.duration_ms is not None:
            run.started = _before(row.ts, row.duration_ms)

    def writer_ended(self, *, live: bool) -> None:
        """All records of a writer were taken; without a process its open runs are gone."""
        for run_id in self._open:
            if not live and run_id in self._runs:
                self._runs[run_id].state = "lost"
                self._runs[run_id].reason = "parent_exit"
        self._open.clear()

    def newest(self) -> list[RunRow]:
        """Return the runs, the newest first."""
        return sorted(self._runs.values(), key=lambda run: (run.started, run.run_id), reverse=True)

    def _bound(self) -> None:
        if len(self._runs) >= 2 * MAX_RUNS:
            self._runs = {run.run_id: run for run in self.newest()[:MAX_RUNS]}


def _before(ts: str, ms: int) -> str:
    """Return the time stamp that is `ms` before another."""
    try:
        moment = datetime.fromisoformat(ts) - timedelta(milliseconds=ms)
    except (ValueError, OverflowError):
        return ts
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"
