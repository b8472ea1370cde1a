"""What the gate remembers: per lane, over many calls, and when the names are hostile.

A lane's cost is measured with tracemalloc (Python's own allocations, exact). What a long
run leaves behind is measured as resident memory after a warm-up, with audit on and its
disk bounded. The hostile runs make every name new: state must stay under a bound that
does not depend on how many names were seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tempfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks import report
from benchmarks.harness import Progress, Result, Verdict, machine
from benchmarks.tool import ARGUMENTS, search
from callgate import CallgateError, Policy, Router, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KIB = 1024
MIB = 1024 * KIB
LANE_BYTES = KIB
FLAT_BYTES = MIB
LIVE_BUCKETS = 65_536
"""Beyond so many buckets that are not full, newcomers share one (the design's bound)."""
HOSTILE_CALLER_BYTES = LIVE_BUCKETS * LANE_BYTES
HOSTILE_TOOL_BYTES = 4 * MIB
"""Names of unlisted tools never become keys, so nothing may grow; this is the allocator's."""

STEP = 10_000

POLICY = """
version: 1
global: {rate: 1000000/second, concurrency: 1000}
callers:
  "*": {rate: CALLER, concurrency: 32}
agents:
  web:
    rate: 1000000/second
    concurrency: 1000
    timeout: 15s
"""
SLOW_REFILL = "100/day"
"""A bucket touched once stays live for a quarter of an hour: the most that must be kept."""
QUICK_REFILL = "1000000/second"


@dataclass(frozen=True, slots=True)
class Size:
    """How much to do."""

    lanes: int
    calls: int
    names: int


QUICK = Size(lanes=20_000, calls=100_000, names=100_000)
FULL = Size(lanes=100_000, calls=1_000_000, names=1_000_000)


async def lane_bytes(callers: int, tools: int, progress: str) -> float:
    """Bytes that each new (caller, tool) adds."""
    router = Router(Policy.parse(_policy(SLOW_REFILL)))
    for tool in range(tools):
        router.tool(agent="web", name=f"tool{tool}")(search)
    names = [f"caller{number}" for number in range(callers)]
    tool_names = [f"tool{tool}" for tool in range(tools)]
    show = Progress(progress, callers)
    async with router:
        await _quietly(router, ToolCall("web", "tool0", ARGUMENTS, caller="warm-up"))
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number, caller in enumerate(names):
            for tool_name in tool_names:
                await _quietly(router, ToolCall("web", tool_name, ARGUMENTS, caller=caller))
            show.at(number + 1)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return grown / (callers * tools)


async def resident_growth(
    make: Callable[[Router, int], Awaitable[object]], policy: str, calls: int, progress: str
) -> int:
    """Resident bytes that `calls` calls leave behind, after as much warm-up as one step."""
    router = Router(Policy.parse(policy))
    router.tool(agent="web", name="search")(search)
    show = Progress(progress, calls)
    async with router:
        for number in range(STEP):
            await make(router, -number)
        before = _resident()
        for done in range(0, calls, STEP):
            for number in range(done, done + STEP):
                await make(router, number)
            show.at(done + STEP)
        return _resident() - before


async def same_call(router: Router, _: int) -> None:
    """The ordinary case: one lane."""
    await router.call(ToolCall("web", "search", ARGUMENTS, caller="alice"))


async def new_caller(router: Router, number: int) -> None:
    """A caller never seen before."""
    await _quietly(router, ToolCall("web", "search", ARGUMENTS, caller=f"caller-{number:x}"))


async def new_tool(router: Router, number: int) -> None:
    """A tool never seen before, once guarded and once called."""
    call = ToolCall("web", f"tool-{number:x}", ARGUMENTS, caller="alice")
    if number & 1:
        await _quietly(router, call)
    else:
        await router.guard(call, _nothing)


async def measure(size: Size) -> Result:
    """Every measurement, one after another."""
    result = Result("memory", "Memory: lanes, long runs and hostile names", machine())
    shapes = ((size.lanes // 100, 100), (size.lanes * 3 // 5, 2))
    for callers, tools in shapes:
        what = f"{callers:,} callers, {tools} tools each"
        each = await lane_bytes(callers, tools, f"memory: {what}")
        _add(result, f"bytes a lane, {what}", each, LANE_BYTES)
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder:
        audit = f"audit: {{path: {Path(folder) / 'audit'}, rotate: 8MiB, max_bytes: 64MiB}}\n"
        what = f"{size.calls:,} calls of one lane, audit on"
        policy = _policy(QUICK_REFILL) + audit
        grown = await resident_growth(same_call, policy, size.calls, f"memory: {what}")
        _add(result, f"resident growth, {what}", grown, FLAT_BYTES)
    what = f"{size.names:,} callers never seen before"
    grown = await resident_growth(new_caller, _policy(SLOW_REFILL), size.names, f"memory: {what}")
    _add(result, f"resident growth, {what}", grown, HOSTILE_CALLER_BYTES)
    what = f"{size.names:,} tools never seen before"
    grown = await resident_growth(new_tool, _policy(QUICK_REFILL), size.names, f"memory: {what}")
    _add(result, f"resident growth, {what}", grown, HOSTILE_TOOL_BYTES)
    return result


async def _quietly(router: Router, call: ToolCall) -> None:
    """Refusals are answers here, not failures."""
    with contextlib.suppress(CallgateError):
        await router.call(call)


async def _nothing() -> None:
    pass


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _policy(caller_rate: str) -> str:
    return POLICY.replace("CALLER", caller_rate)


def _add(result: Result, title: str, value: float, limit: int) -> None:
    result.verdicts.append(Verdict(title, _bytes(value), f"≤ {_bytes(limit)}", value <= limit))


def _bytes(value: float) -> str:
    if abs(value) >= MIB:
        return f"{value / MIB:.2f} MiB"
    return f"{value / KIB:.1f} KiB" if abs(value) > KIB else f"{value:.0f} B"


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    options = report.arguments("what the gate remembers").parse_args(argv)
    result = asyncio.run(measure(QUICK if options.quick else FULL))
    return report.emit(result, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
