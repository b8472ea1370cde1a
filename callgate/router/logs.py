"""Opening and closing what the router writes: the audit logs, and where state is kept. IO."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.audit import AuditLog
from callgate.audit.files import load_key
from callgate.model import ANY
from callgate.router.recorder import Recorder
from callgate.router.sinks import Kept, close_kept

if TYPE_CHECKING:
    from collections.abc import Iterable

    from callgate.audit import Sink
    from callgate.policy import Policy


def state_dir() -> Path:
    """Where state that outlives a process is kept, as the XDG specification has it."""
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return base / "callgate"


class Logs:
    """The logs of a router: opens one for each policy that wants another, closes the former."""

    __slots__ = ("_batched", "_dropped", "_recorders", "_sinks")

    def __init__(self, recorders: list[Recorder], sinks: Iterable[Sink], *, batched: bool) -> None:
        """`recorders` is the engine's: the current policy's first, then those still needed."""
        self._recorders = recorders
        self._sinks = tuple(Kept(sink) for sink in sinks)
        self._batched = batched
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Records that could not be written and were let go, by all logs so far."""
        return self._dropped + sum(recorder.dropped for recorder in list(self._recorders))

    async def open(self, policy: Policy) -> Recorder:
        """The policy's audit log, if it has one, comes first from now on; raises `OSError`."""
        recorder = await self._recorder(policy)
        self._recorders.insert(0, recorder)
        return recorder

    def retire_former(self) -> None:
        """Close all but the first, those that calls in flight need with their last call."""
        for former in self._recorders[1:]:
            former.retire()
            if former.log is None:
                self._recorders.remove(former)
                self._dropped += former.dropped

    def close(self) -> None:
        """Close all of them, and the sinks."""
        for recorder in self._recorders:
            recorder.close()
        close_kept(self._sinks)

    async def _recorder(self, policy: Policy) -> Recorder:
        spec = policy.audit
        if spec is None:
            return Recorder()

        def blocking() -> AuditLog:
            return AuditLog.open(spec, policy=policy.revision, sinks=self._sinks)

        opening = asyncio.get_running_loop().run_in_executor(None, blocking)
        try:
            log = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)  # the thread goes on and opens it
            raise
        return Recorder(log, batched=self._batched)


def _close_unwanted(opening: asyncio.Future[AuditLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def needs_key(policy: Policy) -> bool:
    """Whether pseudonyms must be the same after a restart though there is no audit log."""
    anybody = policy.lane(ANY, ANY, ANY, agent=None, tool=None)
    return policy.audit is None and anybody.quota is not None


def install_key(directory: Path) -> bytes | None:
    """The key of pseudonyms that outlives this process; None if it cannot be kept."""
    try:
        return load_key(directory)
    except (OSError, ValueError):
        return None
