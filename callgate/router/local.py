"""Work that runs in this process.

An async tool runs in its caller's task: no task, no timer and no future a call. A deadline
cancels the task exactly as `asyncio.timeout` does, counting with `uncancel`, so that a cancel
from outside is never swallowed, also in the same tick. A tool that swallows the cancel delays
its own caller; `isolate: task` gives it a task of its own, and answers at the deadline. A sync
tool runs in a thread, which cannot be stopped: its caller is answered at the deadline, and its
slot stays taken until the thread ends.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, current_task
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callgate.errors import CallCanceled, CallgateError
from callgate.router import refusals, screen
from callgate.router.boxed import Boxed, boxed, boxed_call
from callgate.router.flight import Ending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import anyio

    from callgate.router.engine import Engine
    from callgate.router.flight import Flight
    from callgate.router.tools import Tool

MAX_THREADS = 256
"""Threads that sync tools of one router may hold at once: 2 GiB of stacks, mostly untouched."""

CURRENT: ContextVar[Flight | None] = ContextVar("callgate_current_flight", default=None)
"""The call whose tool is running here: what calls made inside it are nested in."""

THE_TOOLS: Final = object()
"""The `handle` of a flight whose caller gets an exception that the tool itself raised, so that it
can be told from a decision of ours. Not the exception, which would hold on to its own frames."""

_NOTHING: Final = object()
_COMPLETED = Ending.COMPLETED


class Reading(NamedTuple):
    """How a runtime says what became of a tool; without an answer, Python's own way."""

    ending: Callable[[Any], Ending] | None = None
    """Tells from a result how the call ended: a runtime may report a failure without raising."""
    measure: Callable[[Any], int | None] = screen.measure
    """Counts the bytes of a result that its reader gets; asked only if a limit wants to know."""
    suspends: tuple[type[BaseException], ...] = ()
    """What is raised to ask a person: the call is suspended, and has not failed."""
    canceled: Callable[[], Ending] | None = None
    """Tells how a call ended whose task was cancelled: by a timeout of the runtime's, perhaps."""

    def of_result(self, result: Any) -> Ending:
        """Return how a call ended whose tool returned."""
        return _COMPLETED if self.ending is None else self.ending(result)

    def of_error(self, error: BaseException) -> Ending:
        """Return how a call ended whose tool raised."""
        return Ending.SUSPENDED if isinstance(error, self.suspends) else Ending.FAILED

    def of_cancel(self) -> Ending:
        """Return how a call ended whose task was cancelled from outside."""
        return Ending.CANCELLED if self.canceled is None else self.canceled()


PLAIN: Final = Reading()
"""Of a function that a program calls."""


class LocalRunner:
    """Runs tools of this process; the `Owner` of their flights."""

    __slots__ = ("_engine", "_threads", "_working", "loop")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.loop: asyncio.AbstractEventLoop | None = None
        """On which the router's calls run; a task is found quicker by it."""
        self._threads: anyio.CapacityLimiter | None = None
        self._working: set[asyncio.Task[Any]] = set()
        """Keeps the tasks alive; the loop itself does not. Bounded by the slots they hold."""

    def entered(self, flight: Flight) -> None:
        _wake(flight)

    def turned_away(self, flight: Flight) -> None:
        _wake(flight)

    def interrupt(self, flight: Flight) -> None:
        if flight.lingers:
            if flight.grace_ns is not None and flight.task is not None:
                flight.task.cancel()
            _wake(flight)
        elif flight.task is not None:
            flight.task.cancel()

    def ignored(self, flight: Flight) -> None:
        """Nothing can be done about code of this process."""

    async def _wait_turn(self, flight: Flight) -> None:
        """Wait in the queue; raises why the call was turned away."""
        flight.waiter = asyncio.get_running_loop().create_future()
        try:
            await flight.waiter
        except (CancelledError, GeneratorExit):
            self._engine.abandon(flight)
            raise
        flight.waiter = None
        self._check_turn(flight)

    def _check_turn(self, flight: Flight) -> None:
        """Raise how a call has ended between its entry and this moment, if it has."""
        if flight.refused is not None:
            raise flight.refused
        if flight.ending is not None:
            raise self._close(flight)

    async def run_job(self, flight: Flight, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Run a call that began before this task did, and may have ended meanwhile."""
        if not flight.queued:
            self._check_turn(flight)
        if tool.is_sync or flight.lane.spec.isolate:
            return await self.run_apart(flight, tool.function, arguments, thread=tool.is_sync)
        return await self.run(flight, tool.function, arguments)

    async def run(
        self,
        flight: Flight,
        function: Callable[..., Awaitable[Any]],
        arguments: Mapping[str, Any],
        reading: Reading = PLAIN,
    ) -> Any:
        """Run an async tool in this very task; return its result."""
        if flight.queued:
            await self._wait_turn(flight)
        task = current_task(self.loop)
        if task is None:
            self._engine.abandon(flight)
            raise RuntimeError("a call needs a task")
        flight.task = task
        flight.base_cancels = task.cancelling()
        parent = flight.parent
        CURRENT.set(flight)
        result: Any = _NOTHING
        try:
            if flight.span is None:
                result = await function(**arguments)
            else:
                with flight.span:
                    result = await function(**arguments)
            ending = _COMPLETED if reading.ending is None else reading.ending(result)
        except BaseException as error:
            replaced = self._raised(flight, task, error, reading)
            if replaced is None:
                if result is _NOTHING:  # else it is not the tool that raised, but `reading`
                    flight.handle = THE_TOOLS
                raise
            await _absorb_cancel(flight, task)
            raise replaced from None
        finally:
            CURRENT.set(parent)
            if parent is not None:
                flight.parent = None  # what it left running must not keep all its ancestors
        if flight.ending is not None or flight.lane.spec.max_output_bytes is not None:
            await self._check_answer(flight, task, result, reading)
        failure = self._engine.finish(flight, ending)
        if failure is not None:
            raise failure
        return result

    async def run_apart(
        self,
        flight: Flight,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        thread: bool,
        reading: Reading = PLAIN,
    ) -> Any:
        """Run a tool beside its caller, who is answered at the deadline whatever it does."""
        if flight.queued:
            await self._wait_turn(flight)
        flight.lingers = True
        flight.grace_ns = None if thread else flight.lane.spec.cancel_grace_ns
        waiter = flight.waiter = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(
            self._work(flight, partial(function, **arguments), reading, thread=thread)
        )
        flight.task = work
        self._working.add(work)
        work.add_done_callback(partial(self._work_done, flight, reading))
        try:
            await waiter
        except (CancelledError, GeneratorExit):
            if flight.settle(reading.of_cancel()):
                self.interrupt(flight)
            self._engine.finish(flight, Ending.CANCELLED)
            raise
        if not work.done() or flight.ending in {Ending.TIMED_OUT, Ending.CANCELLED}:
            raise self._close(flight)
        return self._outcome(flight, work)

    async def _check_answer(
        self, flight: Flight, task: asyncio.Task[Any], result: Any, reading: Reading
    ) -> None:
        """Raise what the caller gets in place of a result that is late or too large."""
        if flight.ending is not None:
            task.uncancel()
            answer = self._close(flight)
            self._engine.late(flight)
            await _absorb_cancel(flight, task)
            raise answer
        oversized = check_output(self._engine, flight, result, reading.measure)
        if oversized is not None:
            raise self._engine.finish(flight, Ending.OVERSIZED) or oversized

    def _outcome(self, flight: Flight, work: asyncio.Task[tuple[Boxed, Ending]]) -> Any:
        """What work that ended in time returns or raises."""
        failure = self._engine.finish(flight, flight.ending or Ending.FAILED)
        if failure is not None:
            raise failure
        if flight.ending is Ending.OVERSIZED:
            raise flight.handle
        box, _ = work.result()
        if box.error is not None:
            flight.handle = THE_TOOLS
        return box.open()

    async def _work(
        self, flight: Flight, function: Callable[[], Any], reading: Reading, *, thread: bool
    ) -> tuple[Boxed, Ending]:
        CURRENT.set(flight)
        if flight.span is None:
            box = await self._do(flight, function, thread=thread)
        else:
            with flight.span:
                box = await self._do(flight, function, thread=thread)
        if box.error is None:
            return box, reading.of_result(box.value)
        return box, reading.of_error(box.error)

    async def _do(self, flight: Flight, function: Callable[[], Any], *, thread: bool) -> Boxed:
        if not thread:
            return await boxed(function())
        import anyio.to_thread  # noqa: PLC0415  # 3 ms, and a gate has no tools of its own

        if self._threads is None:
            self._threads = anyio.CapacityLimiter(MAX_THREADS)

        def run() -> Boxed:
            if flight.ending is not None:  # it was settled while it waited for a thread
                return Boxed(None, CallCanceled())
            return boxed_call(function)

        return await anyio.to_thread.run_sync(run, limiter=self._threads)

    def _work_done(
        self, flight: Flight, reading: Reading, work: asyncio.Task[tuple[Boxed, Ending]]
    ) -> None:
        self._working.discard(work)
        flight.parent = None
        ending = Ending.FAILED
        oversized = None
        if not work.cancelled() and work.exception() is None:
            box, ending = work.result()
            if flight.ending is None and box.error is None:
                oversized = check_output(self._engine, flight, box.value, reading.measure)
        if oversized is not None:
            flight.handle = oversized
            ending = Ending.OVERSIZED
        flight.settle(ending)
        self._engine.work_ended(flight, answered=not work.cancelled())
        _wake(flight)

    def _raised(
        self, flight: Flight, task: asyncio.Task[Any], error: BaseException, reading: Reading
    ) -> BaseException | None:
        """End a call whose tool raised; what to raise instead, or None for the same."""
        engine = self._engine
        settled = flight.ending is not None  # by deadline or cancel: one cancel of the task is ours
        outer = (task.uncancel() if settled else task.cancelling()) > flight.base_cancels
        if isinstance(error, CancelledError):
            if settled and not outer:
                return self._close(flight)
            engine.finish(flight, reading.of_cancel() if outer else Ending.FAILED)
            return None
        if isinstance(error, Exception):
            if settled:
                return self._close(flight)
            return engine.finish(flight, reading.of_error(error))
        closed = isinstance(error, GeneratorExit)  # the others end programs, and must pass
        engine.finish(flight, Ending.CANCELLED if closed else Ending.FAILED)
        return None

    def _close(self, flight: Flight) -> CallgateError:
        """End a call that was settled from outside; the error for its caller."""
        ending = flight.ending or Ending.CANCELLED
        failure = self._engine.finish(flight, ending)
        if failure is not None:
            return failure
        lane = flight.lane
        if ending is Ending.TIMED_OUT:
            elapsed_ns = flight.deadline_ns - flight.asked_ns
            return refusals.timed_out(lane, flight.request_id, elapsed_ns)
        return refusals.plain(CallCanceled, lane, flight.request_id)


def check_output(
    engine: Engine, flight: Flight, result: Any, measure: Callable[[Any], int | None]
) -> CallgateError | None:
    """Measure a result if a limit asks for that; return the error if it is too large."""
    ceiling = flight.lane.spec.max_output_bytes
    if ceiling is None:
        return None
    try:
        size = flight.bytes_out = measure(result)
    except Exception:  # noqa: BLE001  # whose size nobody can tell may be too large
        size = None
    if size is not None and size <= ceiling.limit:
        return None
    error = refusals.output_too_large(flight.lane, flight.request_id, ceiling, size)
    if not ceiling.shadow:
        return error
    engine.would_deny(flight, error)
    return None


def _wake(flight: Flight) -> None:
    waiter = flight.waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _absorb_cancel(flight: Flight, task: asyncio.Task[Any]) -> None:
    """Take back a cancel of ours that was not delivered, so that it does not strike the caller.

    It happens if a tool cancels its own call and then ends without another await: before Python
    3.13 `uncancel` leaves such a cancel to be delivered at the next one.
    """
    if task.cancelling() == flight.base_cancels and getattr(task, "_must_cancel", False):
        try:
            await asyncio.sleep(0)
        except CancelledError:
            if task.cancelling() > flight.base_cancels:
                raise  # somebody else's came meanwhile, and both are delivered as one
