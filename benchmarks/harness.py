"""Interleaved rounds: how contenders compare on a machine that is never quiet.

Theory of operation. Absolute times drift by a factor of two on a shared machine, ratios
of neighbouring moments do not. So every contender runs a short slice in every round, the
order is drawn anew each round (whoever follows its like finds the code warm), and a ratio is
taken *within* a round before the median over all rounds. A slice is long enough (`SLICE_MS`)
to hide the clock and the cold caches left by the contender before it, and short enough that
noise hits whole rounds alike.

The garbage collector is the same for all: what set-up left behind is frozen, a full
collection runs between slices outside the clock, and collections that a contender's own
garbage provokes inside a slice are its cost.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

SLICE_MS = 10.0
WARM_UP_CALLS = 200
QUICK_ROUNDS = 25
FULL_ROUNDS = 200

Batch = Callable[[int], Awaitable[None]]
"""Makes that many calls, one after another."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender that is set up: its loop of calls, and how to see that it did its work."""

    batch: Batch
    before_slice: Callable[[], Awaitable[None]] | None = None
    """Runs outside the clock."""
    settle_calls: int = 0
    """Calls before each slice, outside the clock: where one call is so long that a slice has few,
    the first would pay for the caches that the contender before left."""
    evidence: Callable[[int], str] | None = None
    """Told how many calls were made; says what they left behind, raises if it is too little."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to make the call. `does` and `lacks` state the work behind the number."""

    key: str
    title: str
    does: str
    lacks: str
    set_up: Callable[[], AbstractAsyncContextManager[Ready]]


class Absent(Exception):
    """Raised by a contender's set-up when what it needs is not installed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the rounds and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least two rounds."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Line:
    """One contender's result."""

    key: str
    title: str
    us: Spread
    ratio: Spread
    """Against the base, per round."""
    calls: int
    does: str
    lacks: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: the median ratio of `key` to `base` is at most `limit`."""

    title: str
    key: str
    base: str
    limit: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and what was measured."""

    title: str
    measured: str
    required: str
    passed: bool


@dataclass(slots=True)
class Result:
    """All that one benchmark found."""

    name: str
    title: str
    machine: Mapping[str, str]
    base: str = ""
    rounds: int = 0
    lines: list[Line] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Measured values that are not times a call."""
    absent: dict[str, str] = field(default_factory=dict)
    """Contenders left out, and why."""

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return all(verdict.passed for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def machine() -> dict[str, str]:
    """The machine in words that identify nobody's."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count()
    build = "optimised" if _is_optimised() else "not PGO-optimised"
    return {
        "cores": f"{cores} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()} ({build})",
    }


def _is_optimised() -> bool:
    import sysconfig  # noqa: PLC0415  # 5 ms, needed once

    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")


class Progress:
    """One line on stderr that overwrites itself; silent unless stderr is a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._shown = -1
        self._live = sys.stderr.isatty()

    def at(self, done: int) -> None:
        """Show how far we are, at most once a percent."""
        percent = 100 * done // max(self._total, 1)
        if self._live and percent != self._shown:
            self._shown = percent
            end = "\r" if done < self._total else "\r\033[K"
            print(f"{self._what} {percent:3d} %", end=end, file=sys.stderr, flush=True)


@dataclass(slots=True)
class _Running:
    contender: Contender
    ready: Ready
    clock_ns: Callable[[], int]
    slice_calls: int = 1
    calls: int = 0
    us: list[float] = field(default_factory=list)

    async def slice(self, calls: int) -> float:
        """Nanoseconds for `calls` calls."""
        if self.ready.before_slice is not None:
            await self.ready.before_slice()
        gc.collect()
        if self.ready.settle_calls:
            await self.ready.batch(self.ready.settle_calls)
            self.calls += self.ready.settle_calls
        started = self.clock_ns()
        await self.ready.batch(calls)
        elapsed = self.clock_ns() - started
        self.calls += calls
        return elapsed

    async def calibrate(self) -> None:
        """Warm up, and choose how many calls fill a slice."""
        await self.slice(WARM_UP_CALLS)
        calls = WARM_UP_CALLS
        elapsed = await self.slice(calls)
        self.slice_calls = max(1, round(calls * SLICE_MS * 1e6 / elapsed))


async def compare(
    name: str,
    title: str,
    contenders: Sequence[Contender],
    *,
    base: str,
    rounds: int,
    targets: Sequence[Target] = (),
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Result:
    """Run all contenders in interleaved rounds in this process and this event loop."""
    result = Result(name, title, machine(), base=base, rounds=rounds)
    async with AsyncExitStack() as stack:
        running = [one async for one in _set_up(contenders, stack, result, clock_ns)]
        gc.collect()
        gc.freeze()
        try:
            for one in running:
                await one.calibrate()
            progress = Progress(f"{name}: {len(running)} contenders, {rounds} rounds", rounds)
            order = list(running)
            draw = random.Random(0)  # noqa: S311  # the same in every run
            for number in range(rounds):
                draw.shuffle(order)
                for one in order:
                    elapsed = await one.slice(one.slice_calls)
                    one.us.append(elapsed / one.slice_calls / 1000)
                progress.at(number + 1)
        finally:
            gc.unfreeze()
        result.lines = _lines(running, base)
    result.verdicts = [verdict for t in targets if (verdict := _judge(t, running))]
    return result


async def _set_up(
    contenders: Sequence[Contender],
    stack: AsyncExitStack,
    result: Result,
    clock_ns: Callable[[], int],
) -> AsyncIterator[_Running]:
    for contender in contenders:
        try:
            ready = await stack.enter_async_context(contender.set_up())
        except Absent as absence:
            result.absent[contender.title] = str(absence)
        else:
            yield _Running(contender, ready, clock_ns)


def _lines(running: Sequence[_Running], base: str) -> list[Line]:
    base_us = next(one.us for one in running if one.contender.key == base)
    return [
        Line(
            key=one.contender.key,
            title=one.contender.title,
            us=Spread.of(one.us),
            ratio=Spread.of(_ratios(one.us, base_us)),
            calls=one.calls,
            does=one.contender.does,
            lacks=one.contender.lacks,
            evidence=one.ready.evidence(one.calls) if one.ready.evidence else "",
        )
        for one in running
    ]


def _judge(target: Target, running: Sequence[_Running]) -> Verdict | None:
    us = {one.contender.key: one.us for one in running}
    if target.key not in us or target.base not in us:
        return None
    ratio = Spread.of(_ratios(us[target.key], us[target.base]))
    return Verdict(
        title=target.title,
        measured=f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        required=f"≤ {target.limit:.2f}",
        passed=ratio.median <= target.limit,
    )


def _ratios(us: Sequence[float], base_us: Sequence[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(us, base_us, strict=True)]
