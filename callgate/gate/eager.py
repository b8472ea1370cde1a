"""Look for the next bytes before the loop sleeps, where they tend to come at once.

To sleep and to be woken costs more than a whole pass: the processor has gone idle meanwhile, and
its caches have gone cold. So while one read follows another within `LOOK_NS`, the gate looks for
the next one itself for so long, and only then leaves that to the loop. Nothing is lost by it: a
client or an agent that takes its time is never looked for, and when a quick one stops, one look
was in vain. Between two looks any other process may run; the loop has its turn every `TURN_NS`.
"""

from __future__ import annotations

import os
import select
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from callgate.gate.pipes import Reader

LOOK_NS: Final = 100_000
"""What it costs to sleep and to be woken on a machine that has other things to do."""
TURN_NS: Final = 1_000_000
"""Timers and signals wait for no longer than that; a deadline has to fire within 10 ms."""


def can_look(*readers: Reader) -> bool:
    """Whether the loop reads them all itself, and others can run meanwhile: not on one processor.

    A file that was redirected always has something to read, and a thread that reads it.
    """
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) == 1:
        return False
    return all(reader.is_polled for reader in readers)


class Eager:
    """The readers of a gate, looked at together."""

    __slots__ = ("_pays", "_poll", "_readers", "_since_ns")

    def __init__(self, *readers: Reader) -> None:
        self._readers = {reader.fd: reader for reader in readers}
        poll = select.poll()
        for fd in self._readers:
            poll.register(fd, select.POLLIN)
        self._poll = poll.poll
        self._pays = False
        self._since_ns = 0
        """The end of the last pass."""

    def turn(self, reader: Reader) -> None:
        """The loop says that there is something to read."""
        now_ns = monotonic_ns()
        if now_ns - self._since_ns < LOOK_NS:
            self._pays = True
        reader.read()
        if self._pays:
            self._look(now_ns + TURN_NS)
        self._since_ns = monotonic_ns()

    def _look(self, turn_ns: int) -> None:
        poll, rest = self._poll, os.sched_yield
        readers = self._readers
        until_ns = monotonic_ns() + LOOK_NS
        while all(reader.is_reading for reader in readers.values()):
            while not (ready := poll(0)):
                if monotonic_ns() > until_ns:
                    self._pays = False
                    return
                rest()
            for fd, _ in ready:
                readers[fd].read()
            now_ns = monotonic_ns()
            if now_ns > turn_ns:
                return
            until_ns = now_ns + LOOK_NS
