"""Runtimes that bring threads and loops of their own.

Theory of operation. A router belongs to one event loop. A runtime may call its tools elsewhere:

- *In a thread that has no loop* (`agent.invoke()`): `run_sync` carries the call to the router's
  loop, which lets it in and gives the work a thread, so that the caller is answered at the
  deadline although a thread cannot be stopped. The caller's context variables go along. That is
  four changes of thread, there and back twice; nobody is woken for anything else. Two are the
  least for work that may hang; the other two are because the engine is the loop's alone.
- *On another loop*: the work belongs to that loop and the limits to this one, so it is refused.
- *On the router's loop, with the work in a thread of the runtime's* (`thread=True`): executors
  let go of a thread whose await is cancelled, so the await is shielded; the caller is answered
  at the deadline, the slots stay taken until the thread ends.

A thread waits for the loop with a bound: if nobody runs the loop, or the very thread that should
is the one that waits, the call is refused rather than hung.
"""

from __future__ import annotations

import asyncio
from concurrent import futures
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from callgate.mounts.common import Mount, Unreachable, loop_of
from callgate.mounts.pool import Pool
from callgate.router.boxed import boxed
from callgate.router.local import CURRENT, MAX_THREADS, PLAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.policy import Policy
    from callgate.router import Router
    from callgate.router.boxed import Boxed
    from callgate.router.flight import Flight
    from callgate.router.local import Reading

T = TypeVar("T")

START_S = 5.0
"""How long the router's loop may take to turn to a thread. A loop that is late by more is blocked,
most likely by whoever called a sync function on it."""
LOOK_S = 1.0
"""How often a waiting thread looks whether the loop is still there."""


class _ExitCarrier(Exception):
    """Carries what would end the router's loop, if a task raised it, to the thread it is for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class RuntimeMount(Mount):
    """A mount in a runtime whose tools may run in other threads and loops than the router."""

    __slots__ = ("_denies", "_looked_at", "_threads")

    def __init__(self, router: Router, agent: str, caller: Caller = None) -> None:
        super().__init__(router, agent, caller)
        self._threads: Pool | None = None
        self._looked_at: Policy | None = None
        self._denies = False

    def denies(self) -> bool:
        """Return True if the policy denies any tool of this agent."""
        policy = self.router.policy
        if policy is not self._looked_at:
            self._denies = denies(self.router, self.agent)
            self._looked_at = policy
        return self._denies

    def run_task(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: Any,
        handler: Callable[[], Awaitable[Any]],
        refuse: Callable[[CallgateError], Any],
        *,
        in_thread: Callable[[], bool],
        listed: bool = True,
        reading: Reading = PLAIN,
    ) -> Coroutine[Any, Any, Any]:
        """Do what `run` does, for a caller on a loop or executor other than the router's.

        `listed` says that the runtime has the tool; `in_thread()` whether it gives it a thread.
        """
        try:
            thread = in_thread()
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return _refused(refuse, self.internal_error(error))
        if thread:
            handler = partial(_shielded, handler)
        return self.run(
            tool,
            arguments,
            context,
            handler,
            refuse,
            thread=thread,
            listed=listed,
            reading=reading,
        )

    def run_sync(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: Any,
        work: Callable[[], Any],
        refuse: Callable[[CallgateError], T],
        *,
        listed: bool = True,
        reading: Reading = PLAIN,
    ) -> Any | T:
        """Do what `run` does, for a caller in a thread without a loop; `work` gets another."""

        async def call() -> Any:
            apart = partial(self._in_thread, partial(_contained, work))
            return await self.run(
                tool, arguments, context, apart, refuse, listed=listed, reading=reading
            )

        try:
            return on_loop(self.router, call)
        except Unreachable as error:
            refused = self.internal_error(error)
        except _ExitCarrier as carrier:
            raise carrier.error from None
        return refuse(refused)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Await work in a thread of ours; until it ends, its slots are taken.

        A pool of our own, and not anyio's: that spends two turns of the loop and, to be stopped
        by a scope, a task on every call, which is half of what a call from a thread costs.
        """
        flight = CURRENT.get()
        if flight is None:
            raise RuntimeError("work is held for a call only")
        if self._threads is None:
            self._threads = Pool(MAX_THREADS)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        thread = self._threads.submit(partial(copy_context().run, work))
        thread.add_done_callback(partial(_tell, loop, partial(_wake, ended)))
        try:
            await ended
        except asyncio.CancelledError:
            if not (thread.done() or thread.cancel()):
                flight.grace_ns = None
                await self._linger(flight, thread, loop)
            raise
        return thread.result()

    async def _linger(
        self, flight: Flight, thread: futures.Future[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Keep the slots of a call whose thread goes on until the thread ends."""
        if flight.lingers:  # isolated: this task is nobody's but the work's
            ended = loop.create_future()
            thread.add_done_callback(partial(_tell, loop, partial(_wake, ended)))
            await ended
        else:
            flight.lingers = True
            let_go = partial(self.router.engine.work_ended, flight, answered=True)
            thread.add_done_callback(partial(_tell, loop, let_go))


def denies(router: Router, agent: str) -> bool:
    """Return True if the policy, as it is now, denies any tool of an agent."""
    file = router.policy._file  # noqa: SLF001  # has no public name
    stated = file.agents.get(agent)
    return stated is not None and any(tool.deny for tool in stated.tools.values())


def on_loop(router: Router, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `call()` on the router's loop and wait for it here, in a thread without that loop."""
    loop = loop_of(router)
    if loop is None or not loop.is_running():
        raise Unreachable("the router is not running; enter it before the call")
    if asyncio._get_running_loop() is loop:  # noqa: SLF001  # the public one raises without one
        raise Unreachable("it would block the router's own loop; await the runtime's async method")
    loop_call = _LoopCall(loop, call)
    try:
        loop.call_soon_threadsafe(loop_call.start)
    except RuntimeError as error:
        raise Unreachable("the router's loop is closed") from error
    try:
        loop_call.wait()
    except BaseException:
        loop_call.give_up()
        raise
    return loop_call.result()


class _LoopCall(Generic[T]):
    """A coroutine on a loop for which a thread waits, and is woken once: when it has ended.

    `asyncio.run_coroutine_threadsafe` chains two futures for the same, and cannot say whether the
    loop has turned to it. The coroutine itself wakes the thread, one turn of the loop before its
    task could.
    """

    __slots__ = ("_box", "_call", "_loop", "_running", "_task")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> None:
        self._loop = loop
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._box: Boxed | None = None
        self._running = Lock()
        self._running.acquire()

    def start(self) -> None:
        """Called on the loop, in the context of the thread that asked: start the call."""
        self._task = self._loop.create_task(self._run())

    def wait(self) -> None:
        """Called in the thread: wait until the call has ended; raise if that cannot be expected."""
        blocked_at = monotonic() + START_S
        while not self._running.acquire(timeout=LOOK_S if self._task else min(LOOK_S, START_S)):
            if self._task is not None and self._task.done():
                return  # it was cancelled before it began
            if not self._loop.is_running():
                raise Unreachable("the router's loop has stopped")
            if self._task is None and monotonic() >= blocked_at:
                raise Unreachable(
                    f"the router's loop is blocked; it did not turn to it for {START_S} s"
                )

    def give_up(self) -> None:
        """Called in the thread that no longer waits: cancel the call, also before it begins."""
        _tell(self._loop, self._cancel)

    def result(self) -> T:
        """Called in the thread when the call has ended: return its result or raise."""
        if self._box is None:
            raise futures.CancelledError
        answer: T = self._box.open()
        return answer

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._box = await boxed(self._call())
        finally:
            self._running.release()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], object], *_: Any) -> None:
    """Call `what` on a loop, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


async def _refused(refuse: Callable[[CallgateError], Any], error: CallgateError) -> Any:
    return refuse(error)


async def _shielded(handler: Callable[[], Awaitable[Any]]) -> Any:
    with anyio.CancelScope(shield=True):
        return await handler()


def _contained(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised again where it belongs
        raise _ExitCarrier(error) from None
