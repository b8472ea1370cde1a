"""Mounted: what the gate adds to a step of the runtimes it is mounted in.

A step is one tool call through the runtime's own in-memory client, as an agent makes it. The gate
is mounted with everything on: 3 rates and 2 concurrency scopes, a deadline, metrics and a durable
audit. Beside it FastMCP's own middlewares for rate, timing and logs, which do less.

All contenders of a runtime share one server and one client, and change its middlewares before
their slice: two servers that do the same differ by more than what is measured here.

A step is nothing but computing, so that it is the process's CPU time that counts: the gate is a
twentieth of a step, which is less than what a shared machine takes from one and not from the next.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import report
from benchmarks.byhand import CALLS_PER_SECOND, file_logger
from benchmarks.harness import (
    FULL_ROUNDS,
    QUICK_ROUNDS,
    Absent,
    Contender,
    Line,
    Ready,
    Result,
    Verdict,
    compare,
)
from benchmarks.inprocess import PLENTY, policy_text
from benchmarks.tool import ANSWER, ARGUMENTS, lines_a_call, search
from callgate import Policy, Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import ModuleType

    Evidence = Callable[[int], str] | None

STEP = "fastmcp-step"
MAX_SHARE = 0.05
MAX_US = 50.0
SETTLE_CALLS = 3


def load(name: str) -> ModuleType:
    """A package that may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{name} is not installed") from error


class Stage:
    """A server and its client, whose middlewares the contenders change."""

    def __init__(self, server: Any, client: Any) -> None:
        self.server = server
        self.client = client
        self._own = list(server.middleware)

    def use(self, *middlewares: Any) -> Callable[[], Awaitable[None]]:
        """What to do before a slice with these middlewares."""

        async def change() -> None:
            self.server.middleware[:] = [*self._own, *middlewares]

        return change

    def ready(
        self, middlewares: Sequence[Any], evidence: Evidence, *, client: bool = True
    ) -> Ready:
        """A contender that calls the tool through the client, or the server itself."""
        caller = self.client if client else self.server

        async def batch(calls: int) -> None:
            for _ in range(calls):
                await caller.call_tool("search", ARGUMENTS)

        return Ready(batch, self.use(*middlewares), settle_calls=SETTLE_CALLS, evidence=evidence)


class Stages:
    """The stages, each made by the first contender that needs it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Stage] = {}

    async def fastmcp(self) -> Stage:
        """A FastMCP server and its client."""
        if "fastmcp" not in self._made:
            library = load("fastmcp")
            server: Any = library.FastMCP("benchmark")
            server.tool(search)
            await self._make("fastmcp", server, library.Client(server))
        return self._made["fastmcp"]

    async def sdk(self) -> Stage:
        """The MCP SDK's server and client, with messages between them.

        Its other mode, for tests, calls the server directly and frames nothing.
        """
        if "sdk" not in self._made:
            server: Any = load("mcp.server").MCPServer("benchmark")
            server.add_tool(search)
            await self._make("sdk", server, load("mcp").Client(server, mode="legacy"))
        return self._made["sdk"]

    async def _make(self, name: str, server: Any, client: Any) -> None:
        entered = await self._stack.enter_async_context(client)
        answer = await entered.call_tool("search", ARGUMENTS)
        assert answer.structured_content == {"result": ANSWER}
        self._made[name] = Stage(server, entered)


@asynccontextmanager
async def gate(folder: Path, mount: Callable[[Router], Any]) -> AsyncIterator[tuple[Any, Evidence]]:
    """The mounted gate with everything on, and the proof that it did its work."""
    async with Router(Policy.parse(policy_text(PLENTY, folder))) as router:
        yield mount(router), lambda calls: lines_a_call(folder.rglob("*.jsonl"), calls, 2)


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[list[Any], Evidence]]:
    """FastMCP's own middlewares."""
    package = "fastmcp.server.middleware"
    log = folder / "fastmcp.log"
    with file_logger(folder.name, log) as logger:
        rate = load(f"{package}.rate_limiting").RateLimitingMiddleware
        timing = load(f"{package}.timing").TimingMiddleware
        logging = load(f"{package}.logging").StructuredLoggingMiddleware
        made = [
            rate(max_requests_per_second=CALLS_PER_SECOND),
            timing(logger),
            logging(logger=logger),
        ]
        yield made, lambda calls: lines_a_call([log], calls, 3)


@asynccontextmanager
async def fastmcp(stages: Stages, folder: Path, kind: str, *, client: bool) -> AsyncIterator[Ready]:
    """FastMCP with nothing, the gate, the gate without its audit, or its own three."""
    stage = await stages.fastmcp()
    if kind == "gate":
        mount = load("callgate.mounts.fastmcp").CallgateMiddleware
        async with gate(folder, partial(mount, agent="web")) as (middleware, evidence):
            yield stage.ready([middleware], evidence, client=client)
    elif kind == "silent":
        mount = load("callgate.mounts.fastmcp").CallgateMiddleware
        async with Router(Policy.parse(policy_text(PLENTY, None))) as router:
            yield stage.ready([mount(router, agent="web")], None, client=client)
    elif kind == "three":
        async with three(folder) as (middlewares, evidence):
            yield stage.ready(middlewares, evidence, client=client)
    else:
        yield stage.ready([], None, client=client)


@asynccontextmanager
async def sdk(stages: Stages, folder: Path, kind: str) -> AsyncIterator[Ready]:
    """The MCP SDK with nothing, the gate, or the gate for tools that may be sync."""
    stage = await stages.sdk()
    if kind == "nothing":
        yield stage.ready([], None)
        return
    mount = load("callgate.mounts.mcp_sdk").callgate_middleware
    mount = partial(mount, agent="web", threads=kind == "gate, threads")
    async with gate(folder, mount) as (middleware, evidence):
        yield stage.ready([middleware], evidence)


THREE = (
    "RateLimiting (1 token bucket), Timing (1 text line), StructuredLogging (2 JSON lines without"
    " timestamp, id, caller or tool) to a file."
)
LESS = "further rate scopes, concurrency, a deadline, request ids, a chained log."
ALL = (
    "3 rates and 2 concurrency scopes all or nothing, deadline, metrics, 2 audit records chained by"
    " hash and written to the kernel."
)


def contenders(stages: Stages, folder: Path) -> list[Contender]:
    """All of them, each with a folder of its own."""

    def own(name: str) -> Path:
        path = folder / name
        path.mkdir()
        return path

    def of_fastmcp(key: str, title: str, does: str, lacks: str, kind: str) -> Contender:
        client = key.endswith("step")
        return Contender(
            key, title, does, lacks, partial(fastmcp, stages, own(key), kind, client=client)
        )

    def of_sdk(key: str, title: str, does: str, lacks: str, kind: str) -> Contender:
        return Contender(key, title, does, lacks, partial(sdk, stages, own(key), kind))

    nothing = "any limit or log."
    client, alone = "A call through the in-memory client", "The server alone"
    return [
        of_fastmcp(STEP, "FastMCP step", f"{client}.", nothing, "nothing"),
        of_fastmcp(f"callgate-{STEP}", "FastMCP step, callgate", f"{client}: {ALL}", "", "gate"),
        of_fastmcp(
            "callgate-silent-step",
            "FastMCP step, callgate, no audit",
            f"{client}: the limits, the deadline and the metrics.",
            "the audit.",
            "silent",
        ),
        of_fastmcp("three-step", "FastMCP step, its three", f"{client}: {THREE}", LESS, "three"),
        of_fastmcp("fastmcp", "FastMCP call_tool", f"{alone}.", nothing, "nothing"),
        of_fastmcp(
            "callgate-fastmcp", "FastMCP call_tool, callgate", f"{alone}: {ALL}", "", "gate"
        ),
        of_fastmcp("three", "FastMCP call_tool, its three", f"{alone}: {THREE}", LESS, "three"),
        of_sdk("sdk-step", "MCP SDK step", f"{client}.", nothing, "nothing"),
        of_sdk("callgate-sdk-step", "MCP SDK step, callgate", f"{client}: {ALL}", "", "gate"),
        of_sdk(
            "callgate-sdk-threads-step",
            "MCP SDK step, callgate, threads",
            "The same where tools may be sync: each call is a task of its own.",
            "",
            "gate, threads",
        ),
    ]


def added(line: Line, base: Line) -> float:
    """What a contender costs more than its base, in steps of FastMCP: ratios of one round."""
    return line.ratio.median - base.ratio.median


def share(line: Line, base: Line) -> tuple[float, str]:
    """What it adds to its base: in µs, and in words."""
    part = added(line, base) / base.ratio.median
    us = part * base.us.median
    return us, f"{us:.0f} µs, {100 * part:.1f} %"


def judge(result: Result) -> None:
    """The promises: a small share of a step, and less than what the runtime has of its own.

    The SDK's step is so short that no share is promised of it; it is shown.
    """
    lines = {line.key: line for line in result.lines}
    for key in ("callgate-sdk-step", "callgate-sdk-threads-step"):
        if key in lines:
            _, words = share(lines[key], lines["sdk-step"])
            result.facts[f"{lines[key].title}: added to the step"] = words
    if STEP not in lines:
        return
    silent = lines["callgate-silent-step"]
    result.facts[f"{silent.title}: added to the step"] = share(silent, lines[STEP])[1]
    mounted = lines[f"callgate-{STEP}"]
    us, words = share(mounted, lines[STEP])
    small = us <= MAX_US or us <= MAX_SHARE * lines[STEP].us.median
    required = f"≤ {MAX_US:.0f} µs or ≤ {100 * MAX_SHARE:.0f} %"
    result.verdicts.append(Verdict(f"{mounted.title}: added to the step", words, required, small))
    for base, three, what in ((STEP, "three-step", "a step"), ("fastmcp", "three", "call_tool")):
        ours, theirs = (lines[f"callgate-{base}"], lines[three])
        less = added(ours, lines[base]) < added(theirs, lines[base])
        words = f"{share(ours, lines[base])[1]} against {share(theirs, lines[base])[1]}"
        title = f"callgate against FastMCP's three together, added to {what}"
        result.verdicts.append(Verdict(title, words, "less", less))


async def measure(rounds: int) -> Result:
    """Run the comparison in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        async with AsyncExitStack() as stack:
            result = await compare(
                "mounts",
                "Mounted: the cost of the gate in a runtime's step",
                contenders(Stages(stack), Path(folder)),
                base=STEP,
                rounds=rounds,
                clock_ns=time.process_time_ns,
            )
    judge(result)
    return result


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("what the gate adds to a step of a runtime")
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(argv)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    return report.emit(asyncio.run(measure(rounds)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
