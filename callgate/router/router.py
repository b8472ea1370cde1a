"""`Router`: the gate inside an asyncio program.

It owns the engine, the lanes, the audit logs and the one timer, and runs tools of this process.
State changes happen on the loop that entered it; it is not for several loops or threads.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Self, TypeVar

from callgate.audit import Event
from callgate.errors import (
    AgentUnknown,
    CallgateError,
    InvalidInput,
    PolicyDenied,
    StateUnavailable,
    ToolUnknown,
)
from callgate.limits.counters import Counters
from callgate.model import ANONYMOUS, ANY, RequestIds, ToolCall
from callgate.policy import Policy, Row
from callgate.router import logs, refusals
from callgate.router.engine import Engine
from callgate.router.flight import Flight
from callgate.router.guards import Guards, internal
from callgate.router.jobs import Job, Jobs
from callgate.router.lanes import Lane, Lanes
from callgate.router.local import CURRENT, LocalRunner
from callgate.router.queues import deadline_of
from callgate.router.quotas import SHADOW_NS, Quotas, space_of
from callgate.router.recorder import Recorder
from callgate.router.snapshot import snapshot
from callgate.router.timer import Timer
from callgate.router.tools import Tool, ToolFunction
from callgate.router.usage import Usages
from callgate.stores.place import state_dir as default_state_dir
from callgate.telemetry import names
from callgate.telemetry.metrics import Metrics
from callgate.telemetry.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from callgate.audit import Sink
    from callgate.policy import PolicyError

F = TypeVar("F", bound=ToolFunction)

ANOTHER_LOOP = (
    "the router runs on another event loop; make a router for each loop, or call on the router's:"
    " asyncio.run_coroutine_threadsafe(…, loop)"
)
CLOSE_GRACE_S = 5.0
"""How long calls that were cancelled by the end of `async with` may take to stop."""


class Router:
    """Enforces one policy on calls of tools; use it inside `async with`."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        sinks: Iterable[Sink] = (),
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        batched: bool = False,
    ) -> None:
        """Without a policy the profile `guarded` applies.

        `state_dir` keeps quotas over restarts (default: `$XDG_STATE_HOME/callgate`); `sinks` get
        a copy of every audit record. `batched` is for gates, which handle many calls in one pass
        and then flush the recorders themselves; tools of this process cannot be called then.
        """
        policy = policy or Policy.default()
        ids = RequestIds(time_ns() // 1_000_000, os.urandom(4))
        self.timer = Timer()
        self.engine = self.timer.engine = Engine(ids, Spans(tracer_provider), self.timer.arm)
        self._counters = Counters()
        recorder = Recorder()
        self._batched = batched
        self.engine.recorders.append(recorder)
        self._lanes = Lanes(policy, self._counters, os.urandom(32), recorder)
        self._known = self._lanes.known
        self.listed_tools = self._lanes.listed
        self._local = LocalRunner(self.engine)
        self._jobs = Jobs(self.engine)
        self._state_dir = default_state_dir() if state_dir is None else Path(state_dir)
        self._quotas = Quotas(self._state_dir / "quota.db", space_of(policy))
        self.guards = Guards(
            self.engine, self._local, self._quotas, self._known, self._lane, self._fetch_budget
        )
        self._logs = logs.Logs(self.engine.recorders, sinks, batched=batched)
        self.meter_provider = meter_provider
        self.usages = Usages()
        self._metrics: Metrics | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """Where that loop runs."""
        self._lets_in = False

    @property
    def policy(self) -> Policy:
        """The policy that new calls are under."""
        return self._lanes.policy

    def tool(self, *, agent: str, name: str | None = None) -> Callable[[F], F]:
        """Register a function as a tool; it stays callable as it is, without the gate."""

        def register(function: F) -> F:
            tool_name = name or getattr(function, "__name__", None)
            if not isinstance(tool_name, str):
                raise TypeError("a tool needs a name; pass name=")
            self.add_tool(agent, tool_name, function)
            return function

        return register

    def add_tool(self, agent: str, name: str, function: ToolFunction) -> None:
        """Register a function as `<agent>/<name>`."""
        tool = Tool(function)
        owner = self._lanes.agent(agent)
        if name in owner.tools:
            raise ValueError(f"{agent}/{name} is registered already")
        owner.tools[name] = tool
        self._lanes.declare(agent, [name])

    async def call(self, call: ToolCall) -> Any:
        """Run a registered tool: its result, its own exception, or a `CallgateError`."""
        self._check_loop()
        now_ns = monotonic_ns()
        parent = CURRENT.get()
        lane = self._known.get((call.caller, call.agent, call.tool))  # type: ignore[arg-type]
        if lane is None:
            lane = self._lane(call, parent, now_ns)
        tool = lane.tool
        if tool is None or not tool.fits(call.arguments):
            tool = self._tool(lane, call, parent, now_ns)
        asked_ns = now_ns
        if lane.quota is not None and not self._quotas.in_hand(lane):
            lane = await self._fetch_budget(lane, call, parent, asked_ns)
            now_ns = monotonic_ns()
        try:
            flight = self.engine.begin(lane, call, self._local, parent, now_ns, None, asked_ns)
        except Exception as fault:  # noqa: BLE001  # ours, whatever it is: nothing passes unchecked
            raise internal(lane, fault) from None
        if flight.__class__ is not Flight:
            raise flight  # type: ignore[misc]  # else it is an error
        if tool.is_sync or lane.spec.isolate:
            return await self._local.run_apart(
                flight, tool.function, call.arguments, thread=tool.is_sync
            )
        return await self._local.run(flight, tool.function, call.arguments)

    async def guard(self, call: ToolCall, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Run any `async def handler()` under the limits of the tool that `call` names."""
        self._check_loop()
        guards = self.guards
        flight = guards.admit(call) or await guards.admit_unpaid(call)
        return await guards.work(flight, handler)

    def submit(self, call: ToolCall) -> Job:
        """Start a call: admitted, queued or refused now; the work runs in a task of its own."""
        self._check_loop()
        now_ns = monotonic_ns()
        parent = CURRENT.get()
        lane = self._lane(call, parent, now_ns)
        try:
            tool = self._tool(lane, call, parent, now_ns)
        except CallgateError as unfit:
            return self._jobs.refused(unfit)
        if not self._quotas.in_hand(lane):
            request_id = self.engine.new_id()
            unpaid = self._run_unpaid(lane, call, parent, now_ns, request_id)
            return self._jobs.start(request_id, unpaid, paid=False)
        begun = self.engine.begin(lane, call, self._local, parent, now_ns)
        if not isinstance(begun, Flight):
            return self._jobs.refused(begun)
        work = self._local.run_job(begun, tool, call.arguments)
        return self._jobs.start(begun.request_id, work, paid=True)

    def cancel(self, request_id: str) -> bool:
        """End a call, waiting or running; False if there is no such call any more."""
        return self._jobs.cancel(request_id)

    def explain(
        self, agent: str, tool: str | None = None, *, caller: str | None = None
    ) -> list[Row]:
        """The effective limits of a call's lane, each with where it came from."""
        agent_key, tool_key = self._lanes.keys(agent, tool or ANY)
        return self.policy.explain(agent_key, tool and tool_key, caller)

    def snapshot(self) -> dict[str, Any]:
        """Live usage: counters, queues, calls in flight, agents' processes, the audit log."""
        return snapshot(self.engine, self._lanes, self._counters, self.usages, monotonic_ns())

    async def reload(self, policy: Policy) -> None:
        """Put new calls under another policy.

        Counters survive; calls that wait or run keep what they were let in under. If the new
        policy's audit log cannot be opened this raises and nothing has changed.
        """
        engine = self.engine
        recorder = engine.recorders[0]
        changed = policy.audit != self.policy.audit
        if changed and self._loop is not None:
            recorder = await self._logs.open(policy)
        self._lanes.change(policy, recorder)
        if recorder.key is not None:
            self._lanes.use_key(recorder.key)
        engine.spans.refresh()
        if self._loop is not None:
            recorder.write(Event(event="policy.loaded", policy=policy.revision))
        self._logs.retire_former()
        self._let_in_under(policy)

    def _let_in_under(self, policy: Policy) -> None:
        """Give the counters of waiting calls the new policy's figures: it may have more room."""
        now_ns = monotonic_ns()
        for flight in list(self.engine.flights.values()):
            spec = flight.lane.spec
            if flight.queued and spec.policy != policy.revision:
                self.lane(flight.lane.caller.name, flight.lane.agent.name, spec.tool_key, now_ns)
        self.engine.admit_waiting(now_ns)

    def reload_failed(self, error: PolicyError | None = None) -> None:
        """Write down that a policy could not be read, or not be used here; the old one stays."""
        count = 1 if error is None else len(error.problems) + error.more
        event = Event(event="policy.reload_failed", policy=self.policy.revision, count=count)
        self.engine.recorders[0].write(event)

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("this router is running already")
        policy = self.policy
        key = None
        if logs.needs_key(policy):
            key = await asyncio.to_thread(logs.install_key, self._state_dir)
        recorder = await self._logs.open(policy)
        self._logs.retire_former()
        self._lanes.change(policy, recorder)
        key = recorder.key or key
        if key is not None:
            self._lanes.use_key(key)
        self._lets_in = not self._batched
        self._loop = self._local.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.timer.start(self._loop)
        self.engine.spans.refresh()
        self._metrics = Metrics(
            self._lanes.stats,
            counters={names.AUDIT_DROPPED: lambda: self._logs.dropped},
            usages=self.usages.all,
            meter_provider=self.meter_provider,
        )
        recorder.write(Event(event="policy.loaded", policy=policy.revision))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self.engine
        self._lets_in = False
        self._lanes.change(self.policy, engine.recorders[0])  # a known lane would let calls in
        try:
            await self._stop_calls()
        finally:
            self._loop = self._local.loop = None
            self.timer.stop()
            for flight in list(engine.flights.values()):  # they would not stop: say so and go
                engine.abandon(flight)
            await self._quotas.close()
            if self._metrics is not None:
                self._metrics.close()
            self._logs.close()

    async def _stop_calls(self) -> None:
        engine = self.engine
        empty = asyncio.Event()
        engine.on_drained = empty.set
        self._jobs.cancel_unpaid()
        for request_id in list(engine.flights):
            engine.cancel(request_id)
        if engine.flights:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await empty.wait()
        engine.on_drained = None

    def lane(self, caller: str, agent: str, tool: str, now_ns: int) -> Lane:
        """The lane of a call, for peers; the names may be anybody's."""
        lane = self._known.get((caller, agent, tool))
        if lane is None:
            lane = self._lanes.find(caller, agent, tool, now_ns, time_ns())
        return lane

    def list_tools(self, agent: str, tools: Iterable[str]) -> None:
        """An agent says which tools it has: each gets counters of its own and may be named."""
        self._lanes.declare(agent, tools)

    def _check_loop(self) -> None:
        """Raise on a loop that is not the router's: no timeout and no turn would reach the call.

        A thread runs one loop at a time. To ask for the running one costs a system call.
        """
        loop = self._loop
        if loop is not None and (get_ident() != self._thread or not loop.is_running()):
            raise RuntimeError(ANOTHER_LOOP)

    def _lane(self, call: ToolCall, parent: Flight | None, now_ns: int) -> Lane:
        if not self._lets_in:
            raise RuntimeError("a router lets calls in only inside `async with router:`")
        caller = call.caller
        if caller is None:
            caller = ANONYMOUS if parent is None else parent.lane.caller.name
        return self.lane(caller, call.agent, call.tool, now_ns)

    def _tool(self, lane: Lane, call: ToolCall, parent: Flight | None, now_ns: int) -> Tool:
        """The tool that a call names, also if no lane can have it; raises why it cannot run."""
        agent = self._lanes.agents.get(call.agent)
        tool = None if agent is None else agent.tools.get(call.tool)
        if tool is not None and tool.fits(call.arguments):
            return tool
        kind: type[CallgateError]
        if lane.spec.denied:
            kind = PolicyDenied  # whether it exists or not, and whatever it takes
        elif tool is not None:
            kind = InvalidInput
        else:
            kind = AgentUnknown if agent is None or not agent.tools else ToolUnknown
        error = refusals.plain(kind, lane, self.engine.new_id())
        raise self.engine.refuse_call(lane, error, call, parent, now_ns)

    def quota_in_hand(self, lane: Lane) -> bool:
        """Whether a call can be charged, or refused, without asking the store."""
        return self._quotas.in_hand(lane)

    async def fetch_quota(self, lane: Lane) -> None:
        """Wait until `quota_in_hand`, for peers; raises why that cannot be."""
        if not self._quotas.in_hand(lane):
            try:
                await self._quotas.fetch(lane)
            except StateUnavailable as error:
                refusals.named(error, lane, self.engine.new_id())
                raise self.engine.refuse(lane, error, monotonic_ns()) from None

    async def _fetch_budget(
        self, lane: Lane, call: ToolCall, parent: Flight | None, asked_ns: int, request_id: str = ""
    ) -> Lane:
        """Wait until a call can be charged; its lane, which a reload may have replaced."""
        while lane.quota is not None and not self._quotas.in_hand(lane):
            deadline_ns = deadline_of(lane, "", call.timeout_ms, parent, asked_ns)
            if not isinstance(deadline_ns, int):
                break  # `begin` says what is wrong with it
            shadow = lane.quota.spec.shadow
            left_s = (deadline_ns - monotonic_ns()) / 1e9
            try:
                async with asyncio.timeout(min(left_s, SHADOW_NS / 1e9) if shadow else left_s):
                    await self._quotas.fetch(lane)
            except (TimeoutError, StateUnavailable):
                if not shadow:
                    error = refusals.plain(
                        StateUnavailable, lane, request_id or self.engine.new_id()
                    )
                    now_ns = monotonic_ns()
                    raise self.engine.refuse_call(lane, error, call, parent, now_ns) from None
            lane = self._lane(call, parent, asked_ns)
            if shadow:
                break  # counted or not, the call passes
        return lane

    async def _run_unpaid(
        self, lane: Lane, call: ToolCall, parent: Flight | None, asked_ns: int, request_id: str
    ) -> Any:
        """A job whose budget is not here yet."""
        fetch = partial(self._fetch_budget, lane, call, parent, asked_ns, request_id)
        lane = await self._jobs.when_paid(request_id, lane, fetch, asked_ns)
        tool = self._tool(lane, call, parent, asked_ns)
        begun = self.engine.begin(
            lane, call, self._local, parent, monotonic_ns(), None, asked_ns, request_id
        )
        if not isinstance(begun, Flight):
            raise begun
        return await self._local.run_job(begun, tool, call.arguments)
