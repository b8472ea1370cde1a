"""In process: what full enforcement costs a call, against doing it by hand and the peers.

Every contender awaits the same trivial tool with the same arguments, from one task, with
limits so high that nothing waits or is refused (but for the refused ones). What a user
builds for each call (a `ToolCall`, a `ToolRequest`) is built inside the clock.

`--against DIR` compares this checkout's contenders with another's, interleaved, in processor time
(`compare.py`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import compare as checkouts
from benchmarks import peers, report
from benchmarks.byhand import AT_ONCE, CALLS_PER_SECOND, TIMEOUT_S, ByHand, file_logger
from benchmarks.harness import (
    FULL_ROUNDS,
    QUICK_ROUNDS,
    Contender,
    Ready,
    Result,
    Target,
    compare,
)
from benchmarks.tool import ANSWER, ARGUMENTS, lines_a_call, search
from callgate import Policy, RateLimited, Router, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

BASE = "byhand"

POLICY = f"""
version: 1
global: {{rate: {CALLS_PER_SECOND}/second, concurrency: {AT_ONCE}}}
callers:
  "*": {{rate: {CALLS_PER_SECOND}/second, concurrency: unlimited}}
agents:
  web:
    rate: RATE
    concurrency: {AT_ONCE}
    timeout: {TIMEOUT_S:.0f}s
    max_timeout: {TIMEOUT_S:.0f}s
"""
PLENTY = f"{CALLS_PER_SECOND}/second"
SPENT = "1/day"
"""One call spends it, and the run ends long before it refills."""

OWN = ("callgate", "callgate-no-audit", "callgate-refused", "callgate-refused-no-audit")
"""The contenders that differ between two checkouts."""

TARGETS = (
    Target("full enforcement against by hand", "callgate", BASE, 0.40),
    Target("audit off against by hand", "callgate-no-audit", BASE, 0.15),
    Target("refused against admitted, audit on", "callgate-refused", "callgate", 1.0),
    Target(
        "refused against admitted, audit off",
        "callgate-refused-no-audit",
        "callgate-no-audit",
        1.0,
    ),
)


def policy_text(rate: str, audit: Path | None) -> str:
    """The policy of a contender: three rate scopes, two of concurrency, a deadline."""
    text = POLICY.replace("RATE", rate)
    return text if audit is None else f"{text}audit: {{path: {audit}}}\n"


@asynccontextmanager
async def bare() -> AsyncIterator[Ready]:
    """The tool and nothing else."""

    async def batch(calls: int) -> None:
        for _ in range(calls):
            await search(**ARGUMENTS)

    yield Ready(batch)


@asynccontextmanager
async def by_hand(folder: Path) -> AsyncIterator[Ready]:
    """The base."""
    log = folder / "byhand.jsonl"
    with file_logger("byhand", log) as logger:
        hand = ByHand(logger)
        hand.register("web", "search", search)

        async def batch(calls: int) -> None:
            for _ in range(calls):
                await hand.call("web", "search", ARGUMENTS, caller="alice")

        assert await hand.call("web", "search", ARGUMENTS, caller="alice") == ANSWER
        yield Ready(batch, evidence=lambda calls: lines_a_call([log], calls + 1, 2))


@asynccontextmanager
async def admitted(audit: Path | None) -> AsyncIterator[Ready]:
    """Callgate with every call let through."""
    router = Router(Policy.parse(policy_text(PLENTY, audit)))
    router.tool(agent="web", name="search")(search)

    async def batch(calls: int) -> None:
        for _ in range(calls):
            await router.call(ToolCall("web", "search", ARGUMENTS, caller="alice"))

    def evidence(calls: int) -> str:
        return lines_a_call(audit.rglob("*.jsonl"), calls + 1, 2) if audit else ""

    async with router:
        call = ToolCall("web", "search", ARGUMENTS, caller="alice")
        assert await router.call(call) == ANSWER
        yield Ready(batch, evidence=evidence)


@asynccontextmanager
async def refused(audit: Path | None) -> AsyncIterator[Ready]:
    """Callgate with the agent's rate spent: every call is refused."""
    router = Router(Policy.parse(policy_text(SPENT, audit)))
    router.tool(agent="web", name="search")(search)
    refusals = 0

    async def batch(calls: int) -> None:
        nonlocal refusals
        for _ in range(calls):
            try:
                await router.call(ToolCall("web", "search", ARGUMENTS, caller="alice"))
            except RateLimited:
                refusals += 1

    def evidence(calls: int) -> str:
        assert refusals == calls
        return "every call was refused"

    async with router:
        call = ToolCall("web", "search", ARGUMENTS, caller="alice")
        assert await router.call(call) == ANSWER
        yield Ready(batch, evidence=evidence)


def contenders(folder: Path) -> list[Contender]:
    """All of them, each with a folder of its own."""

    def own(name: str) -> Path:
        path = folder / name
        path.mkdir()
        return path

    return [
        Contender("bare", "bare await", "Awaits the tool.", "anything else.", bare),
        Contender(
            BASE,
            "by hand",
            "3 aiolimiter rates, 2 semaphores, asyncio.timeout, uuid4 request id, 2 orjson lines"
            " (admitted, terminal) through logging to a file, each flushed to the kernel.",
            "all-or-nothing admission, refusals, metrics, a chained log, bounded keys.",
            partial(by_hand, own(BASE)),
        ),
        Contender(
            "callgate",
            "callgate, all on",
            "3 rates and 2 concurrency scopes all or nothing, deadline, metrics, 2 audit records"
            " chained by hash and written to the kernel before the tool and before the answer.",
            "",
            partial(admitted, own("callgate")),
        ),
        Contender(
            "callgate-no-audit",
            "callgate, audit off",
            "The same without the two audit records.",
            "an audit.",
            partial(admitted, None),
        ),
        Contender(
            "callgate-refused",
            "callgate, refused",
            "The agent's rate is spent; the error is raised and caught. Denials beyond 100 a second"
            " are merged into one record with a count.",
            "the tool.",
            partial(refused, own("refused")),
        ),
        Contender(
            "callgate-refused-no-audit",
            "callgate, refused, audit off",
            "The same without audit.",
            "the tool, an audit.",
            partial(refused, None),
        ),
        Contender(
            "tollgate",
            "tollgate 1.4: policy, audit",
            "Policy rules, manifest schema, uuid4 id, SHA-256 of the request, 1 JSON line after the"
            " call (line-buffered, so written to the kernel) with arguments and result, values of"
            " a few key names redacted.",
            "rates, concurrency, a deadline, cancel, metrics, a record before the tool runs, a"
            " chained log.",
            partial(peers.tollgate, own("tollgate"), rates=False),
        ),
        Contender(
            "tollgate-rates",
            "tollgate 1.4: and 3 rates",
            "The same and its in-memory limiter with 3 rules. That keeps every call of the window"
            " in a list and copies it on each call, so its cost grows with traffic; it is emptied"
            " before each slice, outside the clock, to its advantage.",
            "concurrency, a deadline, cancel, metrics, all-or-nothing, a record before the tool"
            " runs, a chained log.",
            partial(peers.tollgate, own("tollgate-rates"), rates=True),
        ),
        Contender(
            "fastmcp",
            "FastMCP call_tool",
            "FastMCP's in-memory dispatch without middleware: argument validation, result"
            " serialisation, a no-op span. The floor below the next line.",
            "any limit or log.",
            partial(peers.fastmcp, own("fastmcp"), middlewares=False),
        ),
        Contender(
            "fastmcp-middlewares",
            "FastMCP: rate, timing, log",
            "The same with RateLimiting (1 token bucket), Timing (1 text line), StructuredLogging"
            " (2 JSON lines without timestamp, id, caller or tool) to a file; what they cost is the"
            " difference to the line above.",
            "further rate scopes, concurrency, a deadline, request ids, a chained log.",
            partial(peers.fastmcp, own("fastmcp-middlewares"), middlewares=True),
        ),
    ]


async def measure(
    rounds: int,
    only: Sequence[str] = (),
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Result:
    """Run the comparison in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        made = contenders(Path(folder))
        return await compare(
            "inprocess",
            "In process: the cost of a guarded call",
            [one for one in made if not only or one.key in {BASE, *only}],
            base=BASE,
            rounds=rounds,
            targets=TARGETS,
            clock_ns=clock_ns,
        )


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    parser = report.arguments("the cost of a guarded call, in process")
    checkouts.add_arguments(parser)
    parser.add_argument("--processor-time", action="store_true", help="and not the clock on a wall")
    options = parser.parse_args(argv)
    if options.against is not None:
        options.only = options.only or ",".join(OWN)
        return checkouts.run("inprocess", options, more=("--processor-time",))
    only = [key for key in options.only.split(",") if key]
    clock_ns = time.process_time_ns if options.processor_time else time.perf_counter_ns
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    return report.emit(asyncio.run(measure(rounds, only, clock_ns)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
