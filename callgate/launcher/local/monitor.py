"""One task that samples all runs of a launcher, each at its own interval.

A sample is measured in a daemon thread of its own: a file system that hangs must neither
stop the event loop, nor delay other runs, nor use up a pool that others share, nor keep the
program from exiting. There is at most one for each run; while it hangs there is no other.
What measures (psutil) is imported with the first sample: an agent must not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from callgate.launcher.local.daemon_thread import in_daemon_thread
from callgate.launcher.local.limit_check import Bounds, Sample, check_usage
from callgate.launcher.plan import bwrap
from callgate.launcher.protocol import LIMIT_REASONS
from callgate.model import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import LimitInfo
    from callgate.launcher.local.local_run import LocalRun

_LOG = logging.getLogger("callgate.launcher")
HANG_NS = 10_000_000_000
"""A sample takes milliseconds; a slow count of files gives up by itself long before this."""
_SHORTEST_S = 0.05
"""Between two rounds, whatever interval a policy asks for."""


class Sampler:
    """Samples one run, and remembers what it has warned of."""

    def __init__(
        self,
        read: Callable[[], Sample],
        bounds: Bounds,
        *,
        on_warning: Callable[[LimitInfo], object] | None = None,
        hang_ns: int = HANG_NS,
    ) -> None:
        self._read = read
        self._bounds = bounds
        self._hang_s = hang_ns / 1e9
        self._on_warning = on_warning
        self._near: frozenset[str] = frozenset()
        self.usage = Usage()
        """The last sample, with the highest memory of all of them."""

    async def sample_once(self) -> LimitInfo | None:
        """Measure once and warn; return the limit for which the run must end, if there is one."""
        reading = in_daemon_thread(self._read)
        try:
            async with asyncio.timeout(self._hang_s):
                sample = await asyncio.shield(reading)
        except TimeoutError:
            # Only the workspace can hang like this, and what cannot be counted is exceeded.
            sample = Sample(self.usage, frozenset({"disk", "files"}))
            if check_usage(self._near, sample, self._bounds).end is None:
                sample = await reading
        before, now = self.usage, sample.usage
        peak = _most(before.memory_peak_bytes, now.memory_peak_bytes, now.memory_bytes)
        # A sum over living processes loses what those had that have ended.
        self.usage = msgspec.structs.replace(
            now,
            memory_peak_bytes=peak,
            cpu_ns=_most(before.cpu_ns, now.cpu_ns),
        )
        checked = check_usage(self._near, sample, self._bounds)
        self._near = checked.near
        if self._on_warning is not None:
            for warning in checked.warnings:
                self._on_warning(warning)
        return checked.end


class _Sampled:
    """A run and its sampler, which is made with the first sample."""

    __slots__ = ("due_ns", "on_warning", "run", "sampler", "sampling")

    def __init__(self, run: LocalRun, on_warning: Callable[[LimitInfo], object] | None) -> None:
        self.run = run
        self.on_warning = on_warning
        self.sampler: Sampler | None = None
        self.due_ns = time.monotonic_ns() + run.spec.monitor_interval_ns
        self.sampling: asyncio.Task[None] | None = None


class Monitor:
    """The task, which is there as long as there are runs."""

    def __init__(self) -> None:
        self._sampled: dict[str, _Sampled] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, run: LocalRun, on_warning: Callable[[LimitInfo], object] | None) -> None:
        """Sample the run until it ends, and end it when its time is over."""
        sampled = _Sampled(run, on_warning)
        self._sampled[run.run_id] = sampled
        run.ended.add_done_callback(lambda _: self._remove(sampled))
        wall_ns = run.spec.limits.wall_time_ns
        if wall_ns is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(wall_ns / 1e9, run.time_out)
            run.ended.add_done_callback(lambda _: timer.cancel())
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._rounds())

    async def aclose(self) -> None:
        """Sample no more."""
        tasks = [each.sampling for each in self._sampled.values() if each.sampling is not None]
        tasks += [self._task] if self._task is not None else []
        self._sampled.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _remove(self, sampled: _Sampled) -> None:
        if self._sampled.get(sampled.run.run_id) is sampled:
            del self._sampled[sampled.run.run_id]
        if sampled.sampling is not None:
            sampled.sampling.cancel()

    async def _rounds(self) -> None:
        while self._sampled:
            now_ns = time.monotonic_ns()
            next_ns = min(each.due_ns for each in self._sampled.values())
            await asyncio.sleep(max(_SHORTEST_S, (next_ns - now_ns) / 1e9))
            now_ns = time.monotonic_ns()
            for each in list(self._sampled.values()):
                if each.due_ns <= now_ns:
                    each.due_ns = now_ns + each.run.spec.monitor_interval_ns
                    if each.sampling is None or each.sampling.done():
                        each.sampling = asyncio.create_task(self._sample(each))

    async def _sample(self, sampled: _Sampled) -> None:
        run = sampled.run
        try:
            if sampled.sampler is None:
                sampled.sampler = await asyncio.to_thread(_sampler, run, sampled.on_warning)
            end = await sampled.sampler.sample_once()
        except Exception:  # noqa: BLE001  # a fault of ours in measuring must not end the measuring
            _LOG.exception("a sample of run %s failed", run.run_id)
            return
        run.last_usage = sampled.sampler.usage
        if end is not None:
            run.kill(LIMIT_REASONS[end.type], end)
        elif run.out_of_memory():
            run.kill("oom", run.limit("memory", run.spec.limits.memory_bytes, None))


def _sampler(run: LocalRun, on_warning: Callable[[LimitInfo], object] | None) -> Sampler:
    """Make the sampler of everything that can be seen of the run."""
    from callgate.launcher.local.usage_readers import UsageReader  # noqa: PLC0415  # psutil, see above

    plan, resources, limits = run.plan, run.resources, run.limits
    group = None if resources is None else resources.group
    extra = 0 if plan.sandbox is None else bwrap.EXTRA_PIDS

    def processes() -> list[int]:
        # Parents come first: what is skipped is bwrap and the namespace's first process.
        return [] if resources is None else resources.processes()[extra:]

    reader = UsageReader(
        processes,
        group=None if group is None else group.usage,
        disk=None if resources is None else run.workspace_reader(resources, processes),
        exact_from_bytes=None if "memory" in plan.kernel else limits.memory_bytes,
        extra_pids=extra,
    )
    bounds = Bounds(run.scope, limits, run.spec.shadow, plan.kernel)
    return Sampler(reader.read, bounds, on_warning=on_warning)


def _most(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
