"""Whoever does a call's work, behind one set of verbs, so that one suite can hold them all to it.

A *worker* is asked to run calls under a router; its work starts, and then answers, is told to
stop, ignores that, dies, or never comes back. The three kinds are a tool of this process (in its
caller's task, in a task of its own, in a thread), a call between two hooks, and a call on a wire.
What a kind cannot do stands in `CANNOT`, with the reason; what its caller reads, in `TOLD`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from callgate import CallgateError, Router, ToolCall
from callgate.limits.deadlines import FINE_NS
from callgate.mounts.hook_calls import HookCalls
from callgate.mounts.threads import RuntimeMount
from callgate.router.flight import Ending
from tests.peers import helpers as wire
from tests.router.helpers import FOREVER_S, turns, until, within

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from callgate import Policy

MS = 1_000_000
TIMEOUT_MS = 10_000
GRACE_MS = 2_000
HOLD_MS = 30_000
WAITS = "callgate.router", "callgate.peers", "callgate.mounts"
"""Packages whose clocks are under the test's hand."""


class Clock:
    """The clock of everything that waits, wherever it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000 * MS
        patched = 0
        for name, module in list(sys.modules.items()):
            if name.startswith(WAITS) and getattr(module, "monotonic_ns", 0) is time.monotonic_ns:
                monkeypatch.setattr(module, "monotonic_ns", self.read)
                patched += 1
        assert patched > 5

    def read(self) -> int:
        return self.now_ns

    def pass_ms(self, router: Router, ms: float) -> None:
        """Let time pass; what is due after it is seen, though the wheel may be a slot late."""
        self.now_ns += int(ms * MS) + FINE_NS
        router.timer._wake()


class Worker(ABC):
    """One kind of worker with a router around it; calls go by names that the test gives."""

    CANNOT: ClassVar[dict[str, str]] = {}
    """What this kind has no way to do → why."""
    TOLD: ClassVar[dict[str, list[str]]]
    """What its caller is told of a call that was answered, timed out, cancelled, closed."""
    holds_ms: float = GRACE_MS
    """How long after its deadline work that goes on keeps its slots."""
    LATE_AFTER_HOLD = 1
    """Answers that are known as late after that."""

    def __init__(self, made: Policy, tmp_path: Path, clock: Clock, *, batched: bool) -> None:
        self.clock = clock
        self.router = Router(made, state_dir=tmp_path / "state", batched=batched)

    async def open(self) -> None:
        await self.router.__aenter__()

    async def close(self) -> None:
        """End the router, whatever is in flight."""
        await within(self.router.__aexit__(None, None, None))
        await turns()

    async def pass_ms(self, ms: float) -> None:
        self.clock.pass_ms(self.router, ms)
        await turns()

    @abstractmethod
    async def ask(self, name: str, *, stubborn: bool = False) -> None:
        """Make a call; its work goes on when it is told to stop if it is `stubborn`."""

    @abstractmethod
    async def started(self, name: str) -> None:
        """Wait until a call's work has begun."""

    @abstractmethod
    def has_started(self, name: str) -> bool:
        """Whether it has."""

    @abstractmethod
    def answer_soon(self, name: str) -> None:
        """The work answers well, in time or late."""

    @abstractmethod
    def cancel_soon(self, name: str) -> None:
        """Its caller does not want it any more."""

    @abstractmethod
    def was_stopped(self, name: str) -> bool:
        """Whether the work was told to stop."""

    @abstractmethod
    def told(self, name: str) -> list[str]:
        """All that the caller was told so far."""

    async def answer(self, name: str) -> None:
        self.answer_soon(name)
        await self.settled()

    async def cancel(self, name: str) -> None:
        self.cancel_soon(name)
        await self.settled()

    async def settled(self) -> None:
        """Let everybody act on what happened."""
        await turns()

    async def let_go(self, name: str) -> None:  # noqa: B027  # most need nothing for that
        """Work that was told to stop ends now, as this kind ends, and says nothing."""

    def release_all(self) -> None:  # noqa: B027  # not all have work in this process
        """Let go of all work of this process: a test that failed must not hang."""

    def die(self) -> None:
        """Whoever does the work dies with it."""
        raise AssertionError(self.CANNOT["die"])


class Work:
    """One call of a tool of this process, held until the test lets it go on."""

    def __init__(self, *, stubborn: bool) -> None:
        self.stubborn = stubborn
        self.go_on: asyncio.Future[None] | None = None
        self.answers = False
        """Told to answer before the loop came to it."""
        self.stopped = False

    async def run(self) -> str:
        while not self.answers:
            self.go_on = asyncio.get_running_loop().create_future()
            try:
                await self.go_on
            except asyncio.CancelledError:
                self.stopped = True
                if not self.stubborn:
                    raise
        return "ok"

    def answer(self) -> None:
        self.answers = True
        if self.go_on is not None and not self.go_on.done():
            self.go_on.set_result(None)


class InTask(Worker):
    """A tool of this process, in its caller's own task."""

    CANNOT: ClassVar[dict[str, str]] = {
        "die": "the tool is part of this process and dies only with it",
        "never": "it runs in its caller's own task, and nobody else can end that",
        "late, cancelled": "a tool that swallows its caller's cancel was not cancelled: it answers",
    }
    TOLD: ClassVar[dict[str, list[str]]] = {
        "answered": ["ok"],
        "timed out": ["limit.timeout"],
        "cancelled": ["cancelled"],
        "closed": ["tool.canceled"],
        "full": ["limit.concurrency"],
        "denied": ["policy.denied"],
    }

    def __init__(self, made: Policy, tmp_path: Path, clock: Clock) -> None:
        super().__init__(made, tmp_path, clock, batched=False)
        self._work: dict[str, Work] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._begun: set[str] = set()
        self.router.add_tool("web", "work", self._tool())

    def _tool(self) -> Any:
        async def work(name: str) -> str:
            self._begun.add(name)
            return await self._work[name].run()

        return work

    async def ask(self, name: str, *, stubborn: bool = False) -> None:
        self._work[name] = Work(stubborn=stubborn)
        call = ToolCall("web", "work", {"name": name}, "anonymous")
        task = self._tasks[name] = asyncio.create_task(self.router.call(call))
        task.add_done_callback(_outcome)  # a test need not look at each
        await turns()

    async def started(self, name: str) -> None:
        await until(lambda: self.has_started(name))

    def has_started(self, name: str) -> bool:
        return name in self._begun

    def answer_soon(self, name: str) -> None:
        self._work[name].answer()

    def cancel_soon(self, name: str) -> None:
        self._tasks[name].cancel()

    def was_stopped(self, name: str) -> bool:
        return self._work[name].stopped

    def release_all(self) -> None:
        for work in self._work.values():
            work.answer()

    def told(self, name: str) -> list[str]:
        return _outcome(self._tasks[name])


class Isolated(InTask):
    """The same, in a task of its own."""

    CANNOT: ClassVar[dict[str, str]] = {
        "die": "the tool is part of this process and dies only with it",
    }


class InThread(InTask):
    """A sync tool of this process, in a thread."""

    CANNOT: ClassVar[dict[str, str]] = {
        "die": "the tool is part of this process and dies only with it",
        "never": "a thread cannot be ended: its slots are taken for as long as it runs",
        "stop": "a thread cannot be told anything",
        "give up": "a thread cannot be ended: its slots are taken for as long as it runs",
    }

    def __init__(self, made: Policy, tmp_path: Path, clock: Clock) -> None:
        self._events: dict[str, threading.Event] = {}
        super().__init__(made, tmp_path, clock)

    def _tool(self) -> Any:
        def work(name: str) -> str:
            self._begun.add(name)
            assert self._events[name].wait(FOREVER_S)
            return "ok"

        return work

    async def ask(self, name: str, *, stubborn: bool = False) -> None:
        self._events[name] = threading.Event()
        await super().ask(name, stubborn=stubborn)

    def answer_soon(self, name: str) -> None:
        self._events[name].set()

    def release_all(self) -> None:
        for event in self._events.values():
            event.set()

    async def let_go(self, name: str) -> None:
        await self.answer(name)

    async def settled(self) -> None:
        """Wait for threads that were told to answer, and for what the loop makes of it."""
        running = self.router._local._working
        events = self._events
        await until(lambda: len(running) <= sum(not events[name].is_set() for name in self._begun))
        await turns()


class Hooked(Worker):
    """A call between two hooks: a runtime runs the tool, and says before and after."""

    CANNOT: ClassVar[dict[str, str]] = {
        "die": "the hooks know nothing of the process that runs the tool",
        "stop": "a hook cannot end a tool",
        "late, cancelled": "the second hook is the end, and none comes after it",
    }
    TOLD: ClassVar[dict[str, list[str]]] = {
        "answered": ["let in"],
        "timed out": ["let in"],
        "cancelled": ["let in"],
        "cancelled in the queue": ["cancelled"],
        "closed": ["let in"],
        "closed in the queue": ["tool.canceled"],
        "full": ["limit.concurrency"],
        "denied": ["policy.denied"],
    }
    holds_ms = HOLD_MS - TIMEOUT_MS
    LATE_AFTER_HOLD = 0
    """The first hook's call is forgotten then: a second one is nobody's."""

    def __init__(self, made: Policy, tmp_path: Path, clock: Clock) -> None:
        super().__init__(made, tmp_path, clock, batched=False)
        self.router.list_tools("web", ["work"])
        self._holder: HookCalls[str] = HookCalls(RuntimeMount(self.router, "web"), HOLD_MS / 1000)
        self._tasks: dict[str, asyncio.Task[CallgateError | None]] = {}

    async def ask(self, name: str, *, stubborn: bool = False) -> None:
        entering = self._holder.enter(name, "work", {}, None)
        self._tasks[name] = asyncio.create_task(entering)
        await turns()

    async def started(self, name: str) -> None:
        await until(lambda: self.has_started(name))

    def has_started(self, name: str) -> bool:
        task = self._tasks[name]
        return task.done() and not task.cancelled() and task.result() is None

    def answer_soon(self, name: str) -> None:
        self._holder.leave(name, Ending.COMPLETED)

    def cancel_soon(self, name: str) -> None:
        if self.has_started(name):
            self._holder.leave(name, Ending.CANCELLED)
        else:
            self._tasks[name].cancel()

    def was_stopped(self, name: str) -> bool:
        raise AssertionError(self.CANNOT["stop"])

    def told(self, name: str) -> list[str]:
        task = self._tasks[name]
        if not task.done() or task.cancelled():
            return _outcome(task)
        error = task.result()
        return ["let in"] if error is None else [error.code]

    async def let_go(self, name: str) -> None:
        self._holder.leave(name, Ending.CANCELLED)


class OnWire(Worker):
    """A call on a wire: a client's frame, and an agent that is another process."""

    TOLD: ClassVar[dict[str, list[str]]] = {
        "answered": ["ok"],
        "timed out": ["limit.timeout"],
        "cancelled": [],  # MCP wants no answer to what was cancelled
        "closed": ["tool.canceled"],
        "died": ["agent.crashed"],
        "full": ["limit.concurrency"],
        "denied": ["policy.denied"],
    }

    def __init__(self, made: Policy, tmp_path: Path, clock: Clock) -> None:
        super().__init__(made, tmp_path, clock, batched=True)
        self._ids: dict[str, int] = {}
        self._own_ids: dict[int, int] = {}
        """The client's id → the gate's."""
        self._stopped: set[int] = set()
        """The gate's."""
        self._answers: list[tuple[int, str]] = []

    async def open(self) -> None:
        await super().open()
        self.rig = wire.Rig(self.router, self.clock)  # type: ignore[arg-type]  # as it is used
        self.rig.shake_hands("work")

    async def close(self) -> None:
        await super().close()
        assert self.rig.faults == []
        self.rig.hub.flush()

    def _look(self) -> None:
        """Read what the gate wrote to either side."""
        for message in self.rig.to_agent():
            method = message.get("method")
            if method == "tools/call":
                self._own_ids[message["params"]["arguments"]["id"]] = message["id"]
            elif method == "notifications/cancelled":
                self._stopped.add(message["params"]["requestId"])
        for message in self.rig.to_client():
            refused = "error" in message or message["result"].get("isError")
            said = wire.code_of(message) if refused else "ok"
            self._answers.append((message["id"], said))

    async def ask(self, name: str, *, stubborn: bool = False) -> None:
        number = self._ids[name] = 100 + len(self._ids)
        self.rig.client(wire.call(number, "work", {"id": number}))

    async def started(self, name: str) -> None:
        assert self.has_started(name)

    def has_started(self, name: str) -> bool:
        self._look()
        return self._ids[name] in self._own_ids

    def answer_soon(self, name: str) -> None:
        self._look()
        self.rig.agent(wire.answer(self._own_ids[self._ids[name]]))

    def cancel_soon(self, name: str) -> None:
        self.rig.client(wire.cancel(self._ids[name]))

    def was_stopped(self, name: str) -> bool:
        self._look()
        return self._own_ids[self._ids[name]] in self._stopped

    def told(self, name: str) -> list[str]:
        self._look()
        return [said for number, said in self._answers if number == self._ids[name]]

    async def let_go(self, name: str) -> None:
        """MCP wants no answer to a cancelled call, so only the grace tells that it has ended."""
        await self.pass_ms(GRACE_MS)

    def die(self) -> None:
        self.rig.dies(again=False)


def _outcome(task: asyncio.Task[Any]) -> list[str]:
    if not task.done():
        return []
    if task.cancelled():
        return ["cancelled"]
    error = task.exception()
    if error is None:
        return [str(task.result())]
    return [error.code] if isinstance(error, CallgateError) else [type(error).__name__]


KINDS: dict[str, type[InTask | Hooked | OnWire]] = {
    "task": InTask,
    "isolated": Isolated,
    "thread": InThread,
    "hooks": Hooked,
    "wire": OnWire,
}
