"""A program's own sinks, which outlive the logs that a reload opens and closes.

Each log copies to its sinks from a thread of its own and closes them at its end. A sink is
promised one thread at a time and one `close`, so between the two stands a `Kept`.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from callgate.audit.sinks import Pump, close_pumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from callgate.audit import Sink


class Kept:
    """A sink under several logs: closed with the last of them, after `let_go`."""

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


def close_kept(sinks: Iterable[Kept]) -> None:
    """Close sinks whose logs have all been closed; waits for none of them long."""
    pumps = []
    for sink in sinks:
        sink.let_go()
        pumps.append(Pump(sink))
    close_pumps(pumps)
