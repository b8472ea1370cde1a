"""Whether a run that ended is followed by another, and when.

Pure: callers pass `now_ns`. The wait doubles with each failure in a row and is forgotten
after a run that lived longer than the longest wait, and a second at least. The brake is for
storms that backoff does not see, such as an agent under `always` that ends well but at once:
however it ended, no more than so many starts fit into a minute. Who writes
`backoff: 0s..0s` wants neither.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from callgate.launcher.protocol import Stopped
    from callgate.model import RestartSpec, StopReason

STORM_STARTS = 10
STORM_NS = 60_000_000_000
"""A supervisor's usual brake: ten in a minute is more than any fault heals by."""

SETTLED_NS = 1_000_000_000
"""Who lived less has failed at its start; else `max` would mean nothing without a backoff."""

_FINAL: frozenset[StopReason] = frozenset({"stop_requested", "policy_changed", "parent_exit"})
"""Somebody wanted the end; a restart would undo it."""


class Again(msgspec.Struct, frozen=True, gc=False):
    """Start again after this time."""

    after_ns: int


class Down(msgspec.Struct, frozen=True, gc=False):
    """Stay down. A paused run can still be resumed by the next call."""

    why: str


class Restarts:
    """The memory of one agent's ends."""

    __slots__ = ("_failures", "_starts", "spec")

    def __init__(self, spec: RestartSpec) -> None:
        self.spec = spec
        self._failures = 0
        self._starts: deque[int] = deque(maxlen=STORM_STARTS)

    def started(self, now_ns: int) -> None:
        """A run has begun, for whatever reason."""
        self._starts.append(now_ns)

    def decide(self, stopped: Stopped, now_ns: int, *, wanted: bool = False) -> Again | Down:
        """What follows an end; `wanted`: it was ended in order to be started again."""
        spec = self.spec
        failed = stopped.state != "stopped"
        if stopped.reason in _FINAL:
            return Down("it was asked to end")
        if not wanted and (spec.on == "never" or (spec.on == "failure" and not failed)):
            return Down("the policy does not restart it")
        lived_ns = now_ns - self._starts[-1] if self._starts else 0
        if lived_ns > max(spec.longest_ns, SETTLED_NS):
            self._failures = 0
        if self._failures >= spec.max:
            return Down(f"it failed {self._failures} times in a row")
        wait_ns = min(spec.longest_ns, spec.first_ns << self._failures)
        self._failures += 1
        if spec.longest_ns and len(self._starts) == STORM_STARTS:
            wait_ns = max(wait_ns, self._starts[0] + STORM_NS - now_ns)
        return Again(wait_ns)
