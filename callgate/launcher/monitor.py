"""One task that looks at all runs of a launcher, each at its own interval.

Looks are measured in threads, one at a time for each run, so a workspace that hangs delays
nobody else. What measures (psutil) is imported with the first look: an agent must not wait
for it to start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import LimitInfo
    from callgate.launcher.life import LocalRun
    from callgate.launcher.plan import LaunchPlan
    from callgate.launcher.watch import Watch

_LOG = logging.getLogger("callgate.launcher")
_SHORTEST_S = 0.05
"""Between two rounds, whatever interval a policy asks for."""


class Watched:
    """A run and its watch, which is made with the first look."""

    __slots__ = ("due_ns", "looking", "on_warning", "plan", "run", "watch")

    def __init__(
        self, run: LocalRun, plan: LaunchPlan, on_warning: Callable[[LimitInfo], object] | None
    ) -> None:
        self.run = run
        self.plan = plan
        self.on_warning = on_warning
        self.watch: Watch | None = None
        self.due_ns = time.monotonic_ns() + run.spec.monitor_interval_ns
        self.looking: asyncio.Task[None] | None = None


class Monitor:
    """The task, which is there as long as there are runs."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._task: asyncio.Task[None] | None = None

    def add(
        self, run: LocalRun, plan: LaunchPlan, on_warning: Callable[[LimitInfo], object] | None
    ) -> None:
        """Look at the run until it ends."""
        watched = Watched(run, plan, on_warning)
        self._watched[run.run_id] = watched
        run.ended.add_done_callback(lambda _: self._remove(watched))
        wall_ns = run.spec.limits.wall_time_ns
        if wall_ns is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(wall_ns / 1e9, run.time_out)
            run.ended.add_done_callback(lambda _: timer.cancel())
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._rounds())

    async def aclose(self) -> None:
        """Look no more."""
        tasks = [each.looking for each in self._watched.values() if each.looking is not None]
        tasks += [self._task] if self._task is not None else []
        self._watched.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _remove(self, watched: Watched) -> None:
        if self._watched.get(watched.run.run_id) is watched:
            del self._watched[watched.run.run_id]
        if watched.looking is not None:
            watched.looking.cancel()

    async def _rounds(self) -> None:
        while self._watched:
            now_ns = time.monotonic_ns()
            next_ns = min(each.due_ns for each in self._watched.values())
            await asyncio.sleep(max(_SHORTEST_S, (next_ns - now_ns) / 1e9))
            now_ns = time.monotonic_ns()
            for each in list(self._watched.values()):
                if each.due_ns <= now_ns:
                    each.due_ns = now_ns + each.run.spec.monitor_interval_ns
                    if each.looking is None or each.looking.done():
                        each.looking = asyncio.create_task(self._look(each))

    async def _look(self, watched: Watched) -> None:
        run = watched.run
        try:
            if watched.watch is None:
                watched.watch = await asyncio.to_thread(_watch, watched)
            end = await watched.watch.look_once()
        except Exception:  # noqa: BLE001  # a fault of ours in measuring must not end the measuring
            _LOG.exception("a look at run %s failed", run.run_id)
            return
        run.last_usage = watched.watch.usage
        if end is not None:
            run.kill(end.reason, end.limit)
        elif run.out_of_memory():
            run.kill("oom", run.limit("memory", run.spec.limits.memory_bytes, None))


def _watch(watched: Watched) -> Watch:
    from callgate.launcher.looking import watch_for  # noqa: PLC0415  # psutil, see above

    return watch_for(watched.run, watched.plan, watched.on_warning)
