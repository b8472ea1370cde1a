"""Calls whose work is not a registered tool but a handler: a runtime's tool, behind a mount.

Letting a call in is apart from its work, so that whoever asks knows by the flight how it ended,
and no coroutine has to stand between the two for that.
"""

from __future__ import annotations

import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

from callgate.errors import InternalError
from callgate.router import refusals
from callgate.router.flight import Flight
from callgate.router.local import CURRENT, PLAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from callgate.model import ToolCall
    from callgate.router.engine import Engine
    from callgate.router.lanes import Key, Lane
    from callgate.router.local import LocalRunner, Reading
    from callgate.router.quotas import Quotas

    FindLane = Callable[[ToolCall, Flight | None, int], Lane]
    FetchBudget = Callable[[Lane, ToolCall, Flight | None, int], Awaitable[Lane]]

_LOG = logging.getLogger("callgate.router")


class Guards:
    """Lets calls in, and runs handlers as their work."""

    __slots__ = ("_engine", "_fetch", "_find", "_known", "_local", "_quotas")

    def __init__(
        self,
        engine: Engine,
        local: LocalRunner,
        quotas: Quotas,
        known: dict[Key, Lane],
        find: FindLane,
        fetch: FetchBudget,
    ) -> None:
        self._engine = engine
        self._local = local
        self._quotas = quotas
        self._known = known
        self._find = find
        self._fetch = fetch

    def admit(
        self, call: ToolCall, paid: Lane | None = None, asked_ns: int | None = None
    ) -> Flight | None:
        """Let a call in, whose `work` has to follow at once, or raise why not.

        None if its budget is not here yet, which `admit_unpaid` waits for.
        """
        now_ns = monotonic_ns()
        parent = CURRENT.get()
        lane = paid or self._known.get((call.caller, call.agent, call.tool))  # type: ignore[arg-type]
        if lane is None:
            lane = self._find(call, parent, now_ns)
        if lane.quota is not None and paid is None and not self._quotas.in_hand(lane):
            return None
        try:
            flight = self._engine.begin(lane, call, self._local, parent, now_ns, None, asked_ns)
        except Exception as fault:  # noqa: BLE001  # ours, whatever it is: nothing passes unchecked
            raise internal(lane, fault) from None
        if flight.__class__ is not Flight:
            raise flight  # type: ignore[misc]  # else it is an error
        return flight

    async def admit_unpaid(self, call: ToolCall) -> Flight:
        """The same, after its budget was fetched."""
        asked_ns = monotonic_ns()
        parent = CURRENT.get()
        lane = await self._fetch(self._find(call, parent, asked_ns), call, parent, asked_ns)
        return cast("Flight", self.admit(call, lane, asked_ns))

    def work(
        self,
        flight: Flight,
        handler: Callable[[], Awaitable[Any]],
        reading: Reading = PLAIN,
    ) -> Coroutine[Any, Any, Any]:
        """Run the work of an admitted call; return or raise what it does, or a `CallgateError`.

        The flight's `handle` says whether an exception is the handler's own (`THE_TOOLS`).
        """
        if flight.lane.spec.isolate:
            return self._local.run_apart(flight, handler, {}, thread=False, reading=reading)
        return self._local.run(flight, handler, {}, reading)


def internal(lane: Lane, fault: Exception) -> InternalError:
    """A fault of ours refuses the call; its text may hold a peer's words and is not logged."""
    _LOG.error("a fault inside the router refused a call: %s", type(fault).__name__)
    return refusals.plain(InternalError, lane, None)
