"""What every mount promises, and what a runtime's adapter has to offer for the promise to be tried.

Theory of operation. `test_contract.py` has the tests of each `Claim`; each of them runs under every
runtime of `runtimes.RUNTIMES`. The adapter of a runtime is a module of `runtimes/` with one
function, `connect(router, tools, **gate)`: an async context manager that puts the runtime's own
agent or server, with `tools` as its tools, under its mount, and gives a `Session`. Nothing that a
test asserts is in an adapter.

What a runtime cannot do stands in its record, claim → reason. The tests of such a claim run all the
same and must fail, so that no reason outlives its cause; `docs/mounts/index.md` shows it. A finding
that is known and not yet repaired stands beside it, in `findings`, and is treated likewise.

A new claim is a member of `Claim` with its tests. An adapter is given another router as `second`
for a second gate around the same tools. A runtime that can ask a person has a session with two
more methods, `suspend` and `resume` (see `Asking`).
"""

from __future__ import annotations

import asyncio
import enum
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pytest

from tests.mounts.conftest import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from callgate import Router
    from tests.mounts.conftest import Desk, Tools

CANNOT_S = 0.2
"""How long a test waits for what its runtime is said to be unable to do."""
INSIDE = "callgate failed inside and refused the call"


class Claim(enum.Enum):
    """A promise of every mount, in the words of its documentation."""

    ADMITTED = "an admitted call is answered and recorded"
    RATE = "a call over its rate is refused"
    CONCURRENCY = "a call too many at once is refused"
    QUEUED = "a call waits in a queue for its turn"
    TIMEOUT = "a timeout stops the work"
    THREAD = "a sync tool is answered for in time, and keeps its slot until it ends"
    CANCEL = "a cancel from outside stops the work and frees its slot"
    DENIED = "a denied call is refused and recorded"
    HIDDEN = "a denied tool is not offered"
    SHADOW = "in shadow mode a call passes, and what would deny it is recorded"
    INPUT_BYTES = "arguments over their bytes are refused"
    OUTPUT_BYTES = "a result over its bytes is withheld, and no other"
    FAILED = "a tool's own failure passes and is recorded as one"
    CALLER = "a name or a function says who calls"
    FAULT = "a fault of callgate lets nothing through"
    SUSPENDED = "a call that asks a person is suspended, frees its slot, and can be resumed"
    TWO_GATES = "two gates in one agent both count a call, and either may refuse it"
    ANOTHER_LOOP = "a call on another event loop than the router's is refused, with what to do"
    CANARY = "arguments and results reach no record, no log and no refusal"


class Session(Protocol):
    """A runtime's agent under a mount. A call may be made while another one runs."""

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """Have the agent call a tool; return what its model, or else its caller, reads of it."""

    async def offered(self) -> set[str]:
        """Return the tools that the model, or else the client, is offered."""

    async def cancel(self, call: asyncio.Task[str]) -> None:
        """Cancel a running `call` in the runtime's own way."""


@runtime_checkable
class Asking(Protocol):
    """A session of a runtime that can ask a person in the middle of a tool."""

    async def suspend(self) -> None:
        """Have the agent call the tool `ask`, which asks a person; return when the run pauses."""

    async def resume(self) -> str:
        """Answer yes; return what the model reads of the tool."""


class Adapter(Protocol):
    """A module of `runtimes/`."""

    def connect(
        self, router: Router, tools: Tools, **gate: Any
    ) -> AbstractAsyncContextManager[Session]:
        """Put an agent under a mount that is given `gate`, and connect to it."""


@dataclass(frozen=True)
class Runtime:
    """A runtime as the documentation and the suite know it."""

    name: str
    """Of its adapter."""
    title: str
    mount: str
    """The public names, without `callgate.`."""
    page: str
    home: str = ""
    """The folder of `tests/compat` whose environment has it; "" is that of `make test`."""
    cannot: Mapping[Claim, str] = field(default_factory=dict)
    findings: Mapping[Claim, str] = field(default_factory=dict)
    prefix: str = ""
    """What the runtime puts before the names of tools."""
    failure: str = "its own words"
    """What is read of a tool that failed with these words."""
    way: str = ""
    """How it is mounted, where that makes a difference to what it cannot do."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What tells apart the ways in which one runtime is connected."""

    @property
    def id(self) -> str:
        """The name in tests."""
        ways = (key if value is True else str(value) for key, value in self.options.items())
        return "-".join((self.name, *ways))

    def connect(
        self, router: Router, tools: Tools, **gate: Any
    ) -> AbstractAsyncContextManager[Session]:
        """Call the adapter, which is imported only now: the runtime may not be installed."""
        adapter: Any = import_module(f"tests.mounts.runtimes.{self.name}")
        connected: AbstractAsyncContextManager[Session] = adapter.connect(
            router, tools, **self.options, **gate
        )
        return connected

    def marks(self, claim: Claim) -> list[pytest.MarkDecorator]:
        """Expect that a claim with a reason fails, for an assertion or because nothing happens."""
        reason = self.cannot.get(claim) or self.findings.get(claim)
        if reason is None:
            return []
        failures = (AssertionError, TimeoutError)
        return [pytest.mark.xfail(strict=True, raises=failures, reason=reason)]


POLICY = """
version: 1
mode: MODE
callers:
  alice: {rate: 1000/second}
defaults: {rate: 1000/second, concurrency: 64}
agents:
  web:
    queue: QUEUE
    tools:
      PREFIXlimited: {rate: 1/hour}
      PREFIXsingle: {concurrency: 1}
      PREFIXslow: {timeout: 50ms}
      PREFIXslow_sync: {timeout: 50ms, concurrency: 1}
      PREFIXsmall: {max_input_bytes: 64}
      PREFIXask: {concurrency: 1}
      PREFIXsized: {max_output_bytes: 4096}
      "PREFIXdelete_*": deny
audit: {path: PATH}
"""


class Stage:
    """One runtime, the policy of the contract, and what a test looks at."""

    def __init__(self, runtime: Runtime, claim: Claim, desk: Desk, tools: Tools) -> None:
        self.runtime = runtime
        self.tools = tools
        self.desk = desk
        self.router: Router
        hopeless = claim in runtime.cannot or claim in runtime.findings
        self.patience_s = CANNOT_S if hopeless else PATIENCE_S

    @asynccontextmanager
    async def open(
        self, mode: str = "enforce", *, queue: int = 0, caller: Any = "alice", **gate: Any
    ) -> AsyncIterator[Session]:
        """Start a router, and connect to an agent under it; bounded."""
        policy = POLICY.replace("PREFIX", self.runtime.prefix).replace("QUEUE", str(queue))
        async with (
            asyncio.timeout(6 * PATIENCE_S),
            self.desk.router(mode, policy) as self.router,
            self.runtime.connect(self.router, self.tools, caller=caller, **gate) as session,
        ):
            failure: AssertionError | TimeoutError | None = None
            try:
                yield session
            except (AssertionError, TimeoutError) as error:
                failure = error  # raised below: a runtime's task group would wrap it
            finally:
                self.tools.free.set()
                self.tools.thread_free.set()
        if failure is not None:
            raise failure

    def events(self) -> list[tuple[str, str | None]]:
        """Of each record of a call, its event and its tool, by the tool's own name."""
        return [
            (event, name and name.removeprefix(self.runtime.prefix))
            for event, name in self.desk.events()
        ]

    def code(self) -> str | None:
        """The code of the newest record of a call."""
        code: str | None = self.desk.records()[-1].get("code")
        return code

    async def recorded(self, event: str, tool: str) -> None:
        """Wait for a record."""
        await until(lambda: (event, tool) in self.events())

    async def happens(self, event: asyncio.Event) -> None:
        """Wait for what the runtime must do, or is said to be unable to do."""
        async with asyncio.timeout(self.patience_s):
            await event.wait()

    async def answered(self, call: asyncio.Task[str]) -> str:
        """Wait as long for an answer; a call that has none is given up."""
        await asyncio.wait((call,), timeout=self.patience_s)
        if not call.done():
            call.cancel()
            self.tools.free.set()
            raise TimeoutError
        return call.result()


@asynccontextmanager
async def running(session: Session, stage: Stage, tool: str) -> AsyncIterator[asyncio.Task[str]]:
    """Call a tool that does not end by itself, and wait until it has started."""
    stage.tools.started.clear()
    call = asyncio.create_task(session.call(tool))
    try:
        await until(lambda: stage.tools.started.is_set() or call.done())
        yield call
    finally:
        stage.tools.free.set()
        if not call.done():
            call.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((call,), timeout=PATIENCE_S)


async def outcome(call: Any) -> str:
    """Return an answer, or the text of what was raised instead."""
    try:
        return str(await call)
    except Exception as error:  # noqa: BLE001  # a runtime may raise what its tool raised
        return str(error)
