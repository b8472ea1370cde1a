"""Record a run of `callgate exec` where `callgate run` records its own: in the audit at home.

A log that cannot be written is no reason not to run the command.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from callgate.audit import AuditLog
from callgate.cli import say
from callgate.gate import run_events
from callgate.model import AuditSpec
from callgate.stores.place import state_dir
from callgate.text import quoted

if TYPE_CHECKING:
    from callgate.audit import Event
    from callgate.launcher.protocol import Run, Stopped

_POLICY = "exec"
"""In the place of a revision: there need not be a policy."""


class RunRecord:
    """The records of one run; `begin` it when the run has been launched."""

    def __init__(self, run: Run, agent: str, log: AuditLog | None) -> None:
        self._run = run
        self._agent = agent
        self._log = log
        self._began_ns = time.monotonic_ns()

    @classmethod
    async def begin(cls, run: Run, agent: str) -> RunRecord:
        """Record the start; the log stays open, so that the run counts as running."""
        began = cls(run, agent, None)
        began._log = await asyncio.to_thread(_open, run, agent)
        return began

    async def end(self, stopped: Stopped) -> None:
        """Record the end, and close the log."""
        lasted_ns = time.monotonic_ns() - self._began_ns
        event = run_events.ended(self._agent, self._run.run_id, stopped, lasted_ns)
        if self._log is not None:
            await asyncio.to_thread(_close, self._log, event)


def _open(run: Run, agent: str) -> AuditLog | None:
    spec = AuditSpec(path=str(state_dir() / "audit"), fail_closed=False)
    try:
        log = AuditLog.open(spec, policy=_POLICY)
    except (OSError, ValueError) as error:
        say.remark(f"callgate: the run is not recorded: {quoted(str(error))}")
        return None
    for event in run_events.started(agent, run.run_id, run.effective):
        log.write(event)
    return log


def _close(log: AuditLog, event: Event) -> None:
    with suppress(OSError):
        log.write(event)
        log.close()
