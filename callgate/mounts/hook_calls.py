"""Calls of tools that a runtime runs itself, between a hook before and a hook after.

Theory of operation. Such a runtime asks before a tool runs and tells when it has run; in between
it owns the work. `enter` admits a call, which has its slots until `leave` settles it, or refuses
it. The deadline still passes: then the call is recorded as timed out, but no hook can stop the
tool, so the slots stay taken until the second hook comes, or until `hold_s` after the first.

Everything here runs on the router's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from callgate.errors import CallCanceled, CallgateError, CallTimedOut
from callgate.model import ANONYMOUS, ToolCall
from callgate.mounts.common import Unreachable
from callgate.router import refusals
from callgate.router.flight import Ending, Flight
from callgate.router.local import CURRENT, check_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.mounts.threads import RuntimeMount
    from callgate.router.lanes import Lane

K = TypeVar("K", bound=Hashable)
"""What tells a runtime's calls apart."""

MAX_HELD = 4_096
"""Calls between their hooks at once; what comes beyond is refused, whatever the policy says."""
HOLD_S = 600.0
"""The longest that Claude Code lets a shell command take; others have no bound of their own."""


class HookCalls(Generic[K]):
    """The calls of one mount that are between their hooks; the `Owner` of their flights."""

    def __init__(self, mount: RuntimeMount, hold_s: float) -> None:
        if hold_s <= 0:
            raise ValueError("hold_s must be positive")
        self._mount = mount
        self._hold_ns = int(hold_s * 1e9)
        self.held: dict[K, Flight] = {}
        """Calls that were admitted and whose second hook has not come."""

    async def enter(
        self, key: K, tool: str, arguments: Mapping[str, Any], context: Any
    ) -> CallgateError | None:
        """Admit a call, after its turn in the queue; it has its slots until `leave(key)`.

        The error says why it may not run.
        """
        try:
            lane, caller = self._lane(tool, context)
            if lane.quota is not None:
                await self._mount.router.fetch_quota(lane)
                lane, caller = self._lane(tool, context)  # a reload may have made another
            begun = self._begin(lane, tool, arguments, caller)
            if isinstance(begun, Flight):
                if begun.queued:
                    await self._wait_turn(begun)
                return begun.refused or self._hold(key, begun)
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return self._refused(error)
        return begun

    def leave(
        self,
        key: K,
        ending: Ending,
        result: Any = None,
        measure: Callable[[Any], int | None] | None = None,
    ) -> CallgateError | None:
        """Settle a call that was admitted; return the error that its result is withheld for.

        That is a result over its bytes, where a runtime says how to `measure` one, or an end that
        cannot be recorded. Do nothing for a call that was refused, or that was forgotten meanwhile.
        """
        flight = self.held.pop(key, None)
        if flight is None:
            return None
        engine = self._mount.router.engine
        if flight.ending is None:
            flight.lingers = False
            oversized = measure and check_output(engine, flight, result, measure)
            return engine.finish(flight, Ending.OVERSIZED if oversized else ending) or oversized
        engine.work_ended(flight, answered=ending is not Ending.CANCELLED)
        return None

    def entered(self, flight: Flight) -> None:
        """Called by the engine; wake the hook that waits."""
        _wake(flight)

    def turned_away(self, flight: Flight) -> None:
        """Called by the engine; wake the hook that waits."""
        _wake(flight)

    def interrupt(self, flight: Flight) -> None:
        """Called by the engine: settle the call, and keep its slots, since the tool goes on."""
        flight.grace_ns = max(0, flight.asked_ns + self._hold_ns - monotonic_ns())
        self._mount.router.engine.finish(flight, flight.ending or Ending.CANCELLED)

    def ignored(self, flight: Flight) -> None:
        """Called by the engine: forget a call whose second hook has not come in time."""
        if self.held.get(flight.handle) is flight:
            del self.held[flight.handle]

    def _lane(self, tool: str, context: Any) -> tuple[Lane, str]:
        mount = self._mount
        mount.check_loop()
        if len(self.held) >= MAX_HELD:
            raise Unreachable(f"{MAX_HELD} calls have not come back")
        caller = mount.caller_of(context)
        if caller is None:
            parent = CURRENT.get()
            caller = ANONYMOUS if parent is None else parent.lane.caller.name
        return mount.router.lane(caller, mount.agent, tool, monotonic_ns()), caller

    def _begin(
        self, lane: Lane, tool: str, arguments: Mapping[str, Any], caller: str
    ) -> Flight | CallgateError:
        # Without a deadline of its own, a call whose second hook never comes would stay for ever.
        timeout_ms = self._hold_ns // 1_000_000 if lane.default_ns > self._hold_ns else None
        call = ToolCall(self._mount.agent, tool, arguments, caller, timeout_ms)
        engine = self._mount.router.engine
        begun = engine.begin(lane, call, self, CURRENT.get(), monotonic_ns())
        if isinstance(begun, Flight):
            begun.lingers = True
        return begun

    async def _wait_turn(self, flight: Flight) -> None:
        flight.waiter = asyncio.get_running_loop().create_future()
        try:
            await flight.waiter
        except asyncio.CancelledError:
            flight.lingers = False
            self._mount.router.engine.abandon(flight)
            raise
        flight.waiter = None

    def _hold(self, key: K, flight: Flight) -> CallgateError | None:
        if flight.ending is not None:  # settled between its entry and this moment
            self._mount.router.engine.work_ended(flight, answered=False)
            kind = CallTimedOut if flight.ending is Ending.TIMED_OUT else CallCanceled
            return refusals.plain(kind, flight.lane, flight.request_id)
        self.leave(key, Ending.CANCELLED)  # of an earlier call with the same key
        flight.handle = key
        self.held[key] = flight
        return None

    def _refused(self, error: Exception) -> CallgateError:
        return error if isinstance(error, CallgateError) else self._mount.internal_error(error)


def _wake(flight: Flight) -> None:
    if flight.waiter is not None and not flight.waiter.done():
        flight.waiter.set_result(None)
