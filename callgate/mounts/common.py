"""What all mounts share: who calls, what is offered, and whose an error is.

Theory of operation. A runtime hands a mount a tool's name, its arguments and a way to run it;
`Mount.run` runs it under the router. Three things may come out. What the tool returned or
raised goes to the runtime untouched, also a `CallgateError` that the tool itself met in a call
of its own: the runtime may need it (control flow, its own errors). A decision of the router
goes to `refuse`, which returns or raises it in the runtime's own form. Anything else that went
wrong is a fault of ours or of the user's `caller=` function: it becomes an `InternalError`
without a word of the fault in it, and goes the same way, so that a gate that fails lets nothing
through.

Work that a cancel may not stop (a runtime's sync tool, in a thread) keeps its places until it
ends, while its caller is answered at the deadline: pass `thread=True`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from asyncio import get_running_loop
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from callgate.audit import Event
from callgate.audit.merge import Merger
from callgate.errors import CallgateError, InternalError, PolicyDenied
from callgate.limits.deadlines import NEVER
from callgate.model import ANONYMOUS, ANY, ToolCall
from callgate.router.local import CURRENT, PLAIN, THE_TOOLS
from callgate.router.refusals import plain
from callgate.router.router import ANOTHER_LOOP

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from callgate.policy import Policy
    from callgate.router import Router
    from callgate.router.flight import Flight
    from callgate.router.local import Reading

    Caller = str | Callable[[Any], str | None] | None
    """Who calls: a name, a function of the runtime's context, or None for the enclosing call's
    caller, else `anonymous`. The function may return None for the same."""

_log = logging.getLogger("callgate.mounts")

T = TypeVar("T")

ERROR_KEY = "callgate/error"
"""Where a refusal's structure stands in a runtime's metadata."""
MAX_DECLARED = 4_096
"""As many tools as the router lists of one agent."""
LEARN_S = 5.0
"""How long a runtime may take to list its tools before calls go on without their names."""
LEARN_AGAIN_NS = 10_000_000_000
"""How long to wait until a runtime that did not list its tools is asked again."""


class Unreachable(Exception):
    """Raised when the router cannot be used from here; the text is ours: why, and what to do."""


def missing_extra(mount: str, package: str, extra: str) -> ImportError:
    """Make the error to raise when the runtime of a mount cannot be imported, or is too old."""
    install = f"pip install --upgrade 'callgate[{extra}]'"
    wanted = _wanted(package, extra)
    try:
        found = version(package)
    except PackageNotFoundError:
        return ImportError(f"{mount} needs {wanted}, which is not installed: {install}")
    return ImportError(f"{mount} needs {wanted}; {package} {found} is installed: {install}")


def _wanted(package: str, extra: str) -> str:
    """Return the requirement as callgate's own metadata has it."""
    with suppress(PackageNotFoundError):
        for line in requires("callgate") or ():
            requirement, _, marker = line.partition(";")
            if requirement.startswith(package) and f"'{extra}'" in marker.replace('"', "'"):
                return requirement.strip()
    return package


def user_id(context: Any) -> str | None:
    """Return `user_id` of what a program gave its run, an object or a mapping, if it has one."""
    mapping = isinstance(context, Mapping)
    user = context.get("user_id") if mapping else getattr(context, "user_id", None)
    return None if user is None else str(user)


def token_subject(token: Any) -> str | None:
    """Return whom an access token is for: its subject, else its client."""
    if token is None:
        return None
    name: str = getattr(token, "subject", None) or token.client_id
    return name


def readable(error: CallgateError) -> str:
    """Return a refusal as a tool's answer that a model can read and obey."""
    return error.describe()


def error_metadata(error: CallgateError) -> dict[str, Any]:
    """Return a refusal as metadata: `{"callgate/error": {…}}`."""
    return {ERROR_KEY: error.as_dict()}


class Mount:
    """One router as one runtime sees it: the tools of `agent`, called by `caller`."""

    __slots__ = (
        "_ask_ns",
        "_caller",
        "_declared",
        "_offered",
        "_policy",
        "_rejections",
        "_working",
        "agent",
        "router",
    )

    def __init__(self, router: Router, agent: str, caller: Caller = None) -> None:
        self.router = router
        self.agent = agent
        self._caller = caller
        self._ask_ns = 0
        """When the runtime may be asked for its tools."""
        self._declared: set[str] = set()
        self._policy: Policy | None = None
        self._offered: dict[tuple[str, str], bool] = {}
        """By keys of `_policy`, so that names of peers cannot fill it."""
        self._rejections = Merger()
        self._working: set[asyncio.Task[Any]] = set()
        """Keeps work alive that outlives its answer; bounded by the slots that it holds."""

    def caller_of(self, context: Any) -> str | None:
        """Return who calls, by the runtime's context."""
        caller = self._caller
        if caller is None or isinstance(caller, str):
            return caller
        name = caller(context)
        if name is not None and not isinstance(name, str):
            raise TypeError("caller= must give a string or None")
        return name

    def offers(self, tool: str, context: Any) -> bool:
        """Return True if the policy shows the tool to this caller; False if that is not known."""
        try:
            policy = self.router.policy
            if policy is not self._policy:
                self._policy = policy
                self._offered.clear()
            caller = self.caller_of(context) or ANONYMOUS
            key = (caller if caller in policy.callers else ANY, policy.tool_key(self.agent, tool))
            offered = self._offered.get(key)
            if offered is None:
                agent_key = policy.agent_key(self.agent)
                spec = policy.lane(key[0], agent_key, key[1], agent=None, tool=None)
                offered = self._offered[key] = not spec.denied
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is offered
            self.internal_error(error)
            return False
        return offered

    def declare(self, tools: Iterable[str]) -> None:
        """Tell the router which tools there are: each is counted apart and named in the audit.

        Only names that the runtime has, never one that a peer asked for.
        """
        declared = self._declared
        new = [tool for tool in tools if tool not in declared][: MAX_DECLARED - len(declared)]
        if new:
            declared.update(new)
            self.router.list_tools(self.agent, new)

    async def learn(self, list_tools: Callable[[], Awaitable[Iterable[str]]]) -> None:
        """Ask the runtime which tools it has, once, so that the very first call is named, too.

        A runtime that does not say is asked again by a later call, and until then its tools are
        counted together, under `*`: or one caller who may not list would spoil it for all.
        """
        now_ns = monotonic_ns()
        if now_ns < self._ask_ns:
            return
        self._ask_ns = now_ns + LEARN_AGAIN_NS
        with suppress(Exception):
            async with asyncio.timeout(LEARN_S):
                self.declare(await list_tools())
            self._ask_ns = NEVER

    async def run(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: Any,
        handler: Callable[[], Awaitable[Any]],
        refuse: Callable[[CallgateError], T],
        *,
        timeout_ms: int | None = None,
        trace: Mapping[str, str] | None = None,
        thread: bool = False,
        listed: bool = False,
        reading: Reading = PLAIN,
    ) -> Any | T:
        """Run `handler()` as a call of `tool`; return its result, or `refuse(error)`.

        `thread` says that the work may be in a thread, which a cancel does not stop; it costs a
        task. `listed` says that the runtime has the tool.
        """
        flight: Flight | None = None
        try:
            self.check_loop()
            if listed and tool not in self._declared:
                self.declare((tool,))
            caller = self.caller_of(context)
            if caller is None and CURRENT.get() is None:
                caller = ANONYMOUS  # as the router would say, after a look-up that finds nothing
            call = ToolCall(self.agent, tool, arguments or {}, caller, timeout_ms, trace=trace)
            guards = self.router.guards
            flight = guards.admit(call) or await guards.admit_unpaid(call)
            if thread:
                handler = partial(self._held, handler)
            return await guards.work(flight, handler, reading)
        except Exception as error:
            if flight is not None and flight.handle is THE_TOOLS:
                raise
            refused = error if isinstance(error, CallgateError) else self.internal_error(error)
        # Outside of the clause, so that what `refuse` raises has no fault of ours behind it.
        return refuse(refused)

    def check_loop(self) -> None:
        """Raise if the running loop is not the one that the router was entered on."""
        loop = loop_of(self.router)
        if loop is None:
            raise Unreachable(
                "the router is not running; make the call inside `async with router:`"
            )
        if get_running_loop() is not loop:
            raise Unreachable(ANOTHER_LOOP)

    def deny(self, tool: str, context: Any) -> CallgateError:
        """Record that a call is denied for what it is, not by a limit; return the error."""
        engine = self.router.engine
        now_ns = monotonic_ns()
        lane = self.router.lane(self.caller_of(context) or ANONYMOUS, self.agent, tool, now_ns)
        return engine.refuse(lane, plain(PolicyDenied, lane, engine.new_id()), now_ns)

    def reject(self, reason: str) -> None:
        """Record that a message was rejected unread; merge the records of a flood."""
        if self._rejections.offer(monotonic_ns()):
            event = Event(
                event="protocol.frame_rejected",
                agent=self.agent,
                policy=self.router.policy.revision,
                code=reason,
            )
            self.router.engine.recorders[0].write(event)

    def internal_error(self, error: Exception) -> InternalError:
        """Log what failed and where, in no words but ours; return the error to refuse with."""
        reason = None
        # Whatever fails here may not come out: there are runtimes that would run the tool.
        with suppress(Exception):
            if isinstance(error, Unreachable):
                reason = str(error)
                _log.error("callgate refused a call of %s: %s", self.agent, error)
            else:
                where = _where(error)
                _log.error(
                    "callgate failed and refused a call: %s in %s", type(error).__name__, where
                )
        return InternalError(agent=self.agent, reason=reason)

    async def _held(self, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Await work that may go on when it is cancelled; until it ends, its slots are taken.

        The cancel is passed on by an anyio scope, and not to the task: anyio lets go of a thread
        when its task is cancelled, and waits for it when its scope is.
        """
        flight = CURRENT.get()
        if flight is None:
            raise RuntimeError("work is held for a call only")
        scope = anyio.CancelScope()
        work = asyncio.create_task(_scoped(scope, handler))
        self._working.add(work)
        # As `asyncio.wait` does, for a fifth less of the whole.
        ended = asyncio.get_running_loop().create_future()
        work.add_done_callback(partial(self._worked, ended))
        try:
            await ended
        except asyncio.CancelledError:
            if not work.done():
                scope.cancel()
                flight.grace_ns = None
                if flight.lingers:  # isolated: this task is nobody's but the work's
                    await asyncio.wait((work,))
                else:
                    flight.lingers = True
                    work.add_done_callback(partial(self._let_go, flight, scope))
            raise
        return work.result()

    def _worked(self, ended: asyncio.Future[None], work: asyncio.Task[Any]) -> None:
        self._working.discard(work)
        if not work.cancelled():
            work.exception()  # else asyncio logs its text
        if not ended.done():
            ended.set_result(None)

    def _let_go(self, flight: Flight, scope: anyio.CancelScope, work: asyncio.Task[Any]) -> None:
        answered = not (scope.cancelled_caught or work.cancelled())
        self.router.engine.work_ended(flight, answered=answered)


def loop_of(router: Router) -> asyncio.AbstractEventLoop | None:
    """Return the loop that entered the router, if any."""
    return router._loop  # noqa: SLF001  # has no public name


def _where(error: Exception) -> str:
    """Return the module and the line that raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "no frame"
    frame, line = frames[-1]
    return f"{frame.f_globals.get('__name__')}:{line}"


async def _scoped(scope: anyio.CancelScope, handler: Callable[[], Awaitable[Any]]) -> Any:
    with scope:
        return await handler()
