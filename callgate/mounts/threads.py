"""Runtimes that bring threads and loops of their own.

Theory of operation. A router belongs to one event loop. A runtime may call its tools elsewhere:

- *In a thread that has no loop* (`agent.invoke()`): `run_sync` carries the call to the router's
  loop, which lets it in and gives the work a thread, so that the caller is answered at the
  deadline although a thread cannot be stopped. The caller's context variables go along.
- *On another loop*: the work belongs to that loop and the limits to this one, so it is refused.
- *On the router's loop, with the work in a thread of the runtime's* (`thread=True`): executors
  let go of a thread whose await is cancelled, so the await is shielded; the caller is answered
  at the deadline, the slots stay taken until the thread ends.

A thread waits for the loop with a bound: if nobody runs the loop, or the very thread that should
is the one that waits, the call is refused rather than hung.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from callgate.errors import InternalError
from callgate.mounts.common import Mount
from callgate.router.local import MAX_THREADS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.policy import Policy
    from callgate.router import Router

_log = logging.getLogger("callgate.mounts")

T = TypeVar("T")

START_S = 5.0
"""How long the router's loop may take to turn to a thread. A loop that is late by more is blocked,
most likely by whoever called a sync function on it."""
LOOK_S = 1.0
"""How often a waiting thread looks whether the loop is still there."""


class Unreachable(Exception):
    """The router's loop cannot be reached from here; the text is ours and says why."""


class _Quit(Exception):
    """Carries what would end the router's loop, if a task raised it, to the thread it is for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class RuntimeMount(Mount):
    """A mount in a runtime whose tools may run in other threads and loops than the router."""

    __slots__ = ("_denies", "_looked_at", "_threads")

    def __init__(self, router: Router, agent: str, caller: Caller = None) -> None:
        super().__init__(router, agent, caller)
        self._threads: anyio.CapacityLimiter | None = None
        self._looked_at: Policy | None = None
        self._denies = False

    def denies(self) -> bool:
        """Whether the policy denies any tool of this agent; else all are offered."""
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
        failed: Callable[[Any], bool] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """What `run` does, for a caller whose loop or executor may be another than the router's.

        `listed` says that the runtime has the tool; `in_thread()` whether it gives it a thread.
        """
        if asyncio.get_running_loop() is not loop_of(self.router):
            return _refused(refuse, self.unreachable(Unreachable("it came on another loop")))
        try:
            if listed and tool not in self._declared:
                self.declare((tool,))
            thread = in_thread()
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is let through
            return _refused(refuse, self.fault(error))
        if thread:
            handler = partial(_shielded, handler)
        return self.run(tool, arguments, context, handler, refuse, thread=thread, failed=failed)

    def run_sync(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: Any,
        work: Callable[[], Any],
        refuse: Callable[[CallgateError], T],
        *,
        listed: bool = True,
        failed: Callable[[Any], bool] | None = None,
    ) -> Any | T:
        """What `run` does, for a caller in a thread without a loop; `work` gets another thread."""

        async def call() -> Any:
            if listed:
                self.declare((tool,))
            if self._threads is None:
                self._threads = anyio.CapacityLimiter(MAX_THREADS)
            apart = partial(
                anyio.to_thread.run_sync, partial(_contained, work), limiter=self._threads
            )
            # Not `run_task`: anyio waits for its threads itself, and a call that still waits for
            # a thread when its time is up must not be shielded.
            return await self.run(
                tool, arguments, context, apart, refuse, thread=True, failed=failed
            )

        try:
            return on_loop(self.router, call)
        except Unreachable as error:
            refused = self.unreachable(error)
        except _Quit as quitting:
            raise quitting.error from None
        return refuse(refused)

    def unreachable(self, error: Unreachable) -> InternalError:
        """Say on the log why a call cannot reach the router; the error to refuse with."""
        _log.error("callgate refused a call of %s: %s", self.agent, error)
        return InternalError(agent=self.agent)


def loop_of(router: Router) -> asyncio.AbstractEventLoop | None:
    """The loop that entered the router, if any."""
    return router._loop  # noqa: SLF001  # has no public name


def denies(router: Router, agent: str) -> bool:
    """Whether the policy, as it is now, denies any tool of an agent."""
    file = router.policy._file  # noqa: SLF001  # has no public name
    stated = file.agents.get(agent)
    return stated is not None and any(tool.deny for tool in stated.tools.values())


def on_loop(router: Router, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `call()` on the router's loop and wait for it here, in a thread without that loop."""
    loop = loop_of(router)
    if loop is None or not loop.is_running():
        raise Unreachable("the router is not running")
    if asyncio._get_running_loop() is loop:  # noqa: SLF001  # the public one raises without one
        raise Unreachable("it would block the router's own loop")
    started = threading.Event()

    async def begin() -> T:
        started.set()
        return await call()

    coroutine = begin()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:
        coroutine.close()
        raise Unreachable("the router's loop is closed") from error
    try:
        _await(future, started, loop)
    except BaseException:
        future.cancel()
        raise
    return future.result()


def _await(
    future: futures.Future[Any], started: threading.Event, loop: asyncio.AbstractEventLoop
) -> None:
    if not started.wait(START_S):
        raise Unreachable(f"the router's loop is blocked; it did not turn to it for {START_S} s")
    while not futures.wait((future,), LOOK_S).done:
        if not loop.is_running():
            raise Unreachable("the router's loop has stopped")


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
        raise _Quit(error) from None
