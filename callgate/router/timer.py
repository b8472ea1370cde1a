"""The one timer of a router, and functions that are to be called once at a given time.

The timer is armed for the engine's next moment, and never early.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from callgate.limits.deadlines import NEVER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from callgate.limits.deadlines import Timed
    from callgate.router.engine import Engine


class TimedCallback:
    """A function that the engine calls once, with `now_ns`, at or after a time."""

    __slots__ = ("callback", "check_at_ns", "deadline_bucket")

    def __init__(self, check_at_ns: int, callback: Callable[[int], None]) -> None:
        self.check_at_ns = check_at_ns
        self.callback = callback
        self.deadline_bucket: set[Timed] | None = None


class Timer:
    """Wakes the engine of a running loop."""

    __slots__ = ("_handle", "_loop", "after_wake", "engine")

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.after_wake: Callable[[], None] | None = None
        """Ends the pass of a gate whose deadlines have just been looked at."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the engine from now on."""
        self._loop = loop

    def stop(self) -> None:
        """Wake it no more."""
        self._loop = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.engine is not None:
            self.engine.armed_ns = NEVER

    def arm(self) -> None:
        """Set the timer to the engine's next moment."""
        loop, engine = self._loop, self.engine
        if loop is None or engine is None:
            return
        if self._handle is not None:
            self._handle.cancel()
        engine.armed_ns = wake_ns = engine.wake_ns
        self._handle = loop.call_later(max(0, wake_ns - monotonic_ns()) / 1e9, self._wake)

    def _wake(self) -> None:
        self._handle = None
        engine = self.engine
        if engine is None:
            return
        engine.armed_ns = NEVER
        engine.wake(monotonic_ns())
        if self.after_wake is not None:
            self.after_wake()
        if engine.wake_ns < engine.armed_ns:
            self.arm()
