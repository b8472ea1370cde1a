"""Submitted calls: admitted or refused at once, awaited or cancelled later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from callgate.errors import CallCanceled, CallgateError
from callgate.router import refusals
from callgate.router.boxed import Boxed, boxed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from callgate.router.engine import Engine
    from callgate.router.lanes import Lane


class Job:
    """Await it for the result, as often as you like; `cancel` ends the call.

    A task that is cancelled while it awaits the job cancels the job, as with any task.
    """

    __slots__ = ("_cancel", "_refused", "_task", "request_id")

    def __init__(
        self,
        request_id: str,
        task: asyncio.Task[Boxed] | None,
        refused: CallgateError | None,
        cancel: Callable[[str], bool],
    ) -> None:
        self.request_id = request_id
        self._task = task
        self._refused = refused
        self._cancel = cancel

    def __await__(self) -> Generator[Any, None, Any]:
        if self._task is None:
            raise self._refused or RuntimeError("a job is a task or a refusal")
        return (yield from self._task.__await__()).open()

    def done(self) -> bool:
        """Whether awaiting it would return or raise at once."""
        return self._task is None or self._task.done()

    def cancel(self) -> bool:
        """Cancel the call: awaiting it raises `CallCanceled`. False if it has ended."""
        return self._cancel(self.request_id)


class _Unpaid:
    """A job whose budget is being fetched; it has a task once it has begun."""

    __slots__ = ("canceled", "task")

    def __init__(self) -> None:
        self.canceled = False
        self.task: asyncio.Task[Any] | None = None


class Jobs:
    """The jobs of one router: keeps their tasks, and those that wait for budget."""

    __slots__ = ("_engine", "_tasks", "_unpaid")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[Boxed]] = set()
        self._unpaid: dict[str, _Unpaid] = {}
        """Jobs whose budget is being fetched: they are in flight nowhere else."""

    def refused(self, error: CallgateError) -> Job:
        """A job that was over before it began."""
        return Job(error.request_id or "", None, error, self.cancel)

    def start(self, request_id: str, work: Coroutine[Any, Any, Any], *, paid: bool) -> Job:
        """Do the work in a task; one that is not `paid` for begins with `when_paid`."""
        if not paid:
            self._unpaid[request_id] = _Unpaid()
        task = asyncio.create_task(boxed(work))
        self._tasks.add(task)

        def done(task: asyncio.Task[Boxed]) -> None:
            self._tasks.discard(task)
            work.close()  # if it was cancelled before its first step
            self._unpaid.pop(request_id, None)
            flight = self._engine.flights.get(request_id)
            if flight is not None:
                self._engine.abandon(flight)

        task.add_done_callback(done)
        return Job(request_id, task, None, self.cancel)

    async def when_paid(
        self, request_id: str, lane: Lane, fetch: Callable[[], Awaitable[Lane]], now_ns: int
    ) -> Lane:
        """Wait for a job's budget, or until it is cancelled."""
        unpaid = self._unpaid[request_id]
        task = unpaid.task = asyncio.current_task()
        canceled = refusals.plain(CallCanceled, lane, request_id)
        try:
            if unpaid.canceled:
                raise self._engine.refuse(lane, canceled, now_ns)
            return await fetch()
        except asyncio.CancelledError:
            if not unpaid.canceled or task is None or task.uncancel() > 0:
                raise  # somebody else's
            raise self._engine.refuse(lane, canceled, now_ns) from None
        finally:
            del self._unpaid[request_id]

    def cancel(self, request_id: str) -> bool:
        """End a call, whether it is a job or not; False if there is no such call any more."""
        unpaid = self._unpaid.get(request_id)
        if unpaid is None:
            return self._engine.cancel(request_id)
        if unpaid.canceled:
            return False
        unpaid.canceled = True
        if unpaid.task is not None:  # else its first step sees it
            unpaid.task.cancel()
        return True

    def cancel_unpaid(self) -> None:
        """End the jobs that are in flight nowhere else."""
        for request_id in list(self._unpaid):
            self.cancel(request_id)
