"""`guarded`: any function, or any block of code, under the router.

    @guarded(router, agent="web")
    async def search(query: str) -> list[str]: ...

    async with guarded(router, agent="db", name="query"):
        ...

Theory of operation. For everything that has no mount of its own. A refusal is raised as the
`CallgateError` that it is; what the code itself raises passes unchanged. A sync function becomes
one to await: it runs in a thread, whose slot is taken until it ends.

A block runs where it stands, in its own task, and yet inside of the coroutine that guards it:
that is run up to the point where the tool would work, left there while the block runs, and run
to its end when the block is left, with the block's exception if it raised one. So a block is
cancelled, timed and settled by the very code that does it for functions.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial, wraps
from types import coroutine
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

import anyio
import anyio.to_thread

from callgate.mounts.common import Mount
from callgate.mounts.sizes import json_bytes
from callgate.router.local import MAX_THREADS, Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
    from types import TracebackType

    from callgate.errors import CallgateError
    from callgate.mounts.common import Caller
    from callgate.router import Router

    Result = Coroutine[Any, Any, "R"]

P = ParamSpec("P")
R = TypeVar("R")

_ENTERED = object()
_READING = Reading(measure=json_bytes)


class guarded:  # noqa: N801  # it is used as a decorator and in `async with`
    """Runs code as a call of `<agent>/<name>`; a function's own name is the default.

    `caller` is a name or a function of the arguments, a mapping by parameter. `arguments` are
    those of a block, for limits on their size; a function's are taken from each call.
    """

    def __init__(
        self,
        router: Router,
        *,
        agent: str,
        name: str | None = None,
        caller: Caller = None,
        arguments: Mapping[str, Any] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        self._mount = Mount(router, agent, caller)
        self._name = name
        self._arguments = arguments or {}
        self._timeout_ms = timeout_ms
        self._block: Coroutine[Any, Any, Any] | None = None

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Result[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, Result[R]]: ...
    def __call__(self, function: Callable[P, Any]) -> Callable[P, Result[Any]]:
        """Guard every call of a function; its name is listed as a tool's."""
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError("a generator cannot be guarded; put `async with guarded(…)` around it")
        name = self._name or function.__name__
        mount, timeout_ms = self._mount, self._timeout_ms
        mount.declare([name])
        is_sync = not inspect.iscoroutinefunction(function)
        run = _in_thread(function) if is_sync else function
        named = _parameters(function)

        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            arguments = _by_name(named, args, kwargs)
            return await mount.run(
                name,
                arguments,
                arguments,
                partial(run, *args, **kwargs),
                _raise,
                timeout_ms=timeout_ms,
                thread=is_sync,
                reading=_READING,
            )

        return call

    async def __aenter__(self) -> None:
        if self._name is None:
            raise TypeError("a block has no name of its own; pass name=")
        if self._block is not None:
            raise RuntimeError("this block is running already; make another")
        task = asyncio.current_task()

        async def block() -> None:
            if asyncio.current_task() is not task:
                raise TypeError("a block runs in its own task: `isolate: task` is for functions")
            await _leave_here()

        running = self._mount.run(
            self._name,
            self._arguments,
            self._arguments,
            block,
            _raise,
            timeout_ms=self._timeout_ms,
        )
        await _run_until_entered(running, partial(running.send, None))
        self._block = running

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = self._block
        if running is None:
            raise RuntimeError("this block was never entered")
        self._block = None
        first = partial(running.send, None) if error is None else partial(running.throw, error)
        try:
            await _run_until_entered(running, first)
        except BaseException as raised:
            # A StopIteration cannot come out of a coroutine as it is.
            if raised is not error and (error is None or raised.__cause__ is not error):
                raise


@coroutine
def _leave_here() -> Generator[Any, None, None]:
    yield _ENTERED


@coroutine
def _run_until_entered(
    running: Coroutine[Any, Any, Any], step: Callable[[], Any]
) -> Generator[Any, None, None]:
    """Run a coroutine in this task to its end, or to where it asks to be left."""
    while True:
        try:
            awaited = step()
        except StopIteration:
            return
        if awaited is _ENTERED:
            return
        try:
            yield awaited
        except BaseException as error:  # noqa: BLE001  # all of them are the coroutine's
            step = partial(running.throw, error)
        else:
            step = partial(running.send, None)


def _raise(error: CallgateError) -> NoReturn:
    raise error


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that can be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return tuple(found.name for found in parameters if found.kind in kinds)


def _by_name(
    named: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, without the object of a method."""
    arguments = dict(zip(named, args, strict=False))
    arguments.pop("self", None)
    if len(args) > len(named):
        arguments["args"] = args[len(named) :]
    arguments.update(kwargs)
    return arguments


def _in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    limiter: anyio.CapacityLimiter | None = None

    async def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal limiter
        if limiter is None:
            limiter = anyio.CapacityLimiter(MAX_THREADS)
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=limiter)

    return run
