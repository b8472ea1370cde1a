"""Opening and closing the audit logs, and the sinks that outlive the logs of a reload. IO."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING

from callgate.audit import AuditLog
from callgate.audit.files import load_key
from callgate.audit.sinks import Pump, close_pumps
from callgate.model import ANY
from callgate.router.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from callgate.audit import Sink
    from callgate.policy import Policy


class SharedSink:
    """A program's own sink under several logs: closed with the last of them, after `let_go`.

    Each log copies to its sinks from a thread of its own and closes them at its end. A sink is
    promised one thread at a time and one `close`, so this stands between the two.
    """

    __slots__ = ("_lock", "_sink", "_wanted", "name")

    def __init__(self, sink: Sink) -> None:
        self.name = sink.name
        self._sink = sink
        self._lock = Lock()
        self._wanted = True

    def emit(self, lines: Sequence[bytes]) -> None:
        """Hand lines on, one log at a time."""
        with self._lock:
            self._sink.emit(lines)

    def close(self) -> None:
        """One log has ended, or all of them have."""
        if not self._wanted:
            with self._lock:
                self._sink.close()

    def let_go(self) -> None:
        """No log will use it any more; the next `close` is the last."""
        self._wanted = False


class Logs:
    """The logs of a router: opens one for each policy that wants another, closes the former."""

    __slots__ = ("_batched", "_dropped", "_recorders", "_sinks")

    def __init__(self, recorders: list[Recorder], sinks: Iterable[Sink], *, batched: bool) -> None:
        """`recorders` is the engine's: the current policy's first, then those still needed."""
        self._recorders = recorders
        self._sinks = tuple(SharedSink(sink) for sink in sinks)
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
            if former.is_done:
                self._recorders.remove(former)
                self._dropped += former.dropped

    def close(self) -> None:
        """Close all of them, and the sinks."""
        for recorder in self._recorders:
            recorder.close()
        _close_shared(self._sinks)

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


def _close_shared(sinks: Iterable[SharedSink]) -> None:
    """Close sinks whose logs have all been closed; waits for none of them long."""
    pumps = []
    for sink in sinks:
        sink.let_go()
        pumps.append(Pump(sink))
    close_pumps(pumps)
