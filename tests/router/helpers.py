"""Routers to try, tools that wait to be told, and what must be left when all is over."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from callgate import CallgateError, Policy, Router, ToolCall
from callgate.audit.events import ADMITTED, TERMINAL
from callgate.limits.deadlines import FINE_NS
from callgate.router import engine as engine_module
from callgate.router import guards as guards_module
from callgate.router import router as router_module
from callgate.router import timer as timer_module

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from callgate.router.flight import Flight

MS = 1_000_000
TURNS = 20
"""More turns of the loop than any hand-over inside the router takes."""
FOREVER_S = 20.0
"""Bounds every wait of a test; none comes near it."""

OPEN = """
version: 1
defaults: {timeout: 10s, max_timeout: 60s, concurrency: unlimited, rate: unlimited}
"""
"""A policy that limits nothing but time."""


def policy(text: str = OPEN, *, audit: Path | None = None, audit_more: str = "") -> Policy:
    if audit is not None:
        text += f"audit: {{path: {audit}{audit_more}}}\n"
    return Policy.parse(text)


async def echo(value: Any = None) -> Any:
    return value


async def fail() -> None:
    raise ValueError("no")


class Gate:
    """A tool that goes on when it is told, and says who came."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Any]] = []
        self.names: list[str] = []

    async def __call__(self, name: str = "") -> str:
        self.names.append(name)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            await future
        finally:
            self.waiting.remove(future)
        return name

    def open(self, count: int = 1) -> None:
        for future in self.waiting[:count]:
            if not future.done():
                future.set_result(None)

    async def entered(self, count: int = 1) -> None:
        await until(lambda: len(self.names) >= count)


async def turns(count: int = TURNS) -> None:
    """Let everybody else go on as far as they can without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for other tasks, threads or timers to make it true; bounded."""
    async with asyncio.timeout(FOREVER_S):
        while not condition():  # noqa: ASYNC110  # threads and timers set no asyncio.Event
            await asyncio.sleep(0.001)


async def within(awaitable: Awaitable[Any]) -> Any:
    """Await something that must end."""
    async with asyncio.timeout(FOREVER_S):
        return await awaitable


async def refused(awaitable: Awaitable[Any]) -> CallgateError:
    """The error that an await raises; it must be one of ours."""
    with pytest.raises(CallgateError) as caught:
        await within(awaitable)
    return caught.value


@asynccontextmanager
async def running(
    made: Policy, tmp_path: Path, tools: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Router]:
    """A router at work, with tools by `agent/name`."""
    router = Router(made, state_dir=tmp_path / "state", **options)
    for name, function in (tools or {"web/echo": echo}).items():
        agent, _, tool = name.partition("/")
        router.add_tool(agent, tool, function)
    async with router:
        yield router


def call(name: str = "web/echo", /, caller: str | None = "alice", **arguments: Any) -> ToolCall:
    agent, _, tool = name.partition("/")
    return ToolCall(agent, tool, arguments, caller)


def flights(router: Router) -> list[Flight]:
    return list(router.engine.flights.values())


def only_id(router: Router) -> str:
    (request_id,) = router.engine.flights
    return request_id


def used_slots(router: Router) -> dict[str, int]:
    """Places taken, by scope, callers' own included."""
    _, slots = router._counters.shared()
    taken = {slot.spec.scope.describe("*"): slot.used for slot in slots}
    for caller in router._counters._callers.values():
        for slot in caller.slots:
            taken[slot.spec.scope.describe(caller.name)] = slot.used
    return {scope: count for scope, count in taken.items() if count}


def assert_nothing_is_left(router: Router) -> None:
    """No slot, no flight, no waiting call, no deadline, no pin, nothing counted as running."""
    engine = router.engine
    watched = [*engine.deadlines._fine.values(), *engine.deadlines._coarse.values()]
    agents = [*router._lanes.agents.values(), router._lanes._stranger]
    assert used_slots(router) == {}
    assert engine.flights == {}
    assert engine._queues.agents == {}
    assert [len(agent.queue) for agent in agents] == [0] * len(agents)
    assert [item for slot in watched for item in slot] == []
    assert [
        caller.name for caller in router._counters._callers.values() if caller.waiting_calls
    ] == []
    assert [stats.in_flight for stats in router._lanes.stats() if stats.in_flight] == []
    assert [stats.queued for stats in router._lanes.stats() if stats.queued] == []


def rates_left(router: Router) -> dict[str, int]:
    """What the buckets of all scopes that are no caller's have left."""
    return {rate["scope"]: rate["left"] for rate in router.snapshot()["rates"]}


def refusals(router: Router) -> Counter[str]:
    counted: Counter[str] = Counter()
    for tool in router.snapshot()["tools"]:
        counted.update(tool["refusals"])
    return counted


class Clock:
    """The router's monotonic clock, under the test's hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000 * MS
        for module in (router_module, guards_module, engine_module, timer_module):
            monkeypatch.setattr(module, "monotonic_ns", self.read)

    def read(self) -> int:
        return self.now_ns

    def advance(self, router: Router, ms: float) -> None:
        """Let time pass, and the timer ring."""
        self.now_ns += int(ms * MS)
        router.timer._wake()

    def expire(self, router: Router, ms: float) -> None:
        """The same, and what is due is surely seen: the wheel may be late by one slot."""
        self.now_ns += FINE_NS
        self.advance(router, ms)


def audit_lines(path: Path) -> list[dict[str, Any]]:
    """All records of all writers, in the order of the files."""
    files = sorted(path.glob("*/*.jsonl"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


def call_events(path: Path) -> list[str]:
    """The records of calls, in order, without their prefix."""
    prefix = "tool.call."
    found = [line["event"] for line in audit_lines(path)]
    return [event.removeprefix(prefix) for event in found if event.startswith(prefix)]


def calls_of(path: Path) -> dict[str, list[str]]:
    """Request id → its records, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in audit_lines(path):
        if "request_id" in line:
            found[line["request_id"]].append(line["event"])
    return dict(found)


def assert_each_admitted_call_ends_once(path: Path) -> int:
    """Returns how many were admitted."""
    admitted = 0
    for request_id, events in calls_of(path).items():
        ends = [event for event in events if event in TERMINAL]
        entered = events.count(ADMITTED)
        admitted += entered
        assert (entered, len(ends)) in {(1, 1), (0, 0)}, (request_id, events)
    return admitted
