"""How late deadlines fire, and that none fires early.

Calls start at random moments and ask for random deadlines; their tool waits for ever.
Every second one is guarded by `asyncio.timeout` instead, in the same loop: what the loop
and the machine are late by is in both numbers. A light load of short calls runs beside.

Lateness is counted from just before the call, so it includes the way in; a deadline that
fired early would show as negative.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from benchmarks import report
from benchmarks.harness import Progress, Result, Verdict, machine
from benchmarks.tool import ARGUMENTS, search
from callgate import CallTimedOut, Policy, Router, ToolCall

QUICK_COUNT = 400
FULL_COUNT = 2_000
SHORTEST_MS = 20
LONGEST_MS = 500
PER_SECOND = 500
"""Deadlines that fire each second: light enough that the loop itself is on time."""
LOAD_EVERY_S = 0.002
LATE_LIMIT_MS = 10.0
SEED = 20_25

POLICY = """
version: 1
global: {rate: 1000000/second, concurrency: 100000}
callers: {"*": {rate: 1000000/second, concurrency: unlimited}}
agents:
  web: {rate: 1000000/second, concurrency: 100000, timeout: 15s, max_timeout: 60s}
"""


async def by_gate(router: Router, timeout_ms: int) -> float:
    """Milliseconds between the deadline and the answer."""
    call = ToolCall("web", "hang", caller="alice", timeout_ms=timeout_ms)
    started = time.perf_counter()
    try:
        await router.call(call)
    except CallTimedOut:
        return (time.perf_counter() - started) * 1000 - timeout_ms
    raise AssertionError("a call that waits for ever came back")


async def by_asyncio(timeout_ms: int) -> float:
    """The same with the loop's own timer."""
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await _hang()
    except TimeoutError:
        return (time.perf_counter() - started) * 1000 - timeout_ms
    raise AssertionError("a call that waits for ever came back")


async def measure(count: int) -> Result:
    """Spread `count` deadlines over the gate and as many over asyncio."""
    result = Result("deadlines", "Deadlines: how late they fire", machine())
    router = Router(Policy.parse(POLICY))
    router.tool(agent="web", name="hang")(_hang)
    router.tool(agent="web", name="search")(search)
    dice = random.Random(SEED)  # noqa: S311  # not a secret
    progress = Progress(f"deadlines: {count} of each", 2 * count)
    done = 0

    async def one(*, gate: bool) -> float:
        nonlocal done
        timeout_ms = dice.randint(SHORTEST_MS, LONGEST_MS)
        await asyncio.sleep(dice.uniform(0, 2 * count / PER_SECOND))
        late_ms = await (by_gate(router, timeout_ms) if gate else by_asyncio(timeout_ms))
        done += 1
        progress.at(done)
        return late_ms

    async with router:
        load = asyncio.create_task(_load(router))
        late_ms = await asyncio.gather(*(one(gate=bool(n & 1)) for n in range(2 * count)))
        load.cancel()
    gate, loop = sorted(late_ms[1::2]), sorted(late_ms[0::2])
    result.facts["deadlines"] = f"{count:,} of {SHORTEST_MS} to {LONGEST_MS} ms"
    result.facts["callgate, late by"] = _describe(gate)
    result.facts["asyncio.timeout, late by"] = _describe(loop)
    result.verdicts = [
        Verdict("none fires early", f"first at {gate[0]:+.3f} ms", "≥ 0 ms", gate[0] >= 0),
        Verdict(
            "99 of 100 fire within",
            f"{_quantile(gate, 0.99):.2f} ms",
            f"≤ {LATE_LIMIT_MS:.0f} ms",
            _quantile(gate, 0.99) <= LATE_LIMIT_MS,
        ),
        Verdict(
            "the latest fires within",
            f"{gate[-1]:.2f} ms",
            f"≤ {LATE_LIMIT_MS:.0f} ms beyond asyncio's own latest",
            gate[-1] <= LATE_LIMIT_MS + loop[-1],
        ),
    ]
    return result


async def _load(router: Router) -> None:
    while True:
        await router.call(ToolCall("web", "search", ARGUMENTS, caller="bob"))
        await asyncio.sleep(LOAD_EVERY_S)


async def _hang() -> None:
    await asyncio.get_running_loop().create_future()


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, round(share * len(ordered)))]


def _describe(ordered: list[float]) -> str:
    p50, p99 = _quantile(ordered, 0.5), _quantile(ordered, 0.99)
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {ordered[-1]:.2f} ms"


def main(argv: list[str] | None = None) -> int:
    """Run as a script."""
    options = report.arguments("how late deadlines fire").parse_args(argv)
    result = asyncio.run(measure(QUICK_COUNT if options.quick else FULL_COUNT))
    return report.emit(result, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
