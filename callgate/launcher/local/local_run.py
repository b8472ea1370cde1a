"""The life of a run: starting, running, and the one reason for which it ended.

    starting → running → stopped   it ended as asked, or by itself without a failure
                       → crashed   it failed, was killed, or reached a limit
                       → paused    the kernel ran out of its memory; its workspace is kept

Who ends a run says why before it kills; the first reason counts. If nobody did, the end is
told from the exit status and from the kernel's counters: a SIGKILL is `oom` only if the
group's counter grew, else it is somebody's `signal`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Protocol

import msgspec

from callgate.errors import LimitInfo
from callgate.launcher.plan.cgroup_plan import Counters
from callgate.launcher.protocol import Stopped
from callgate.model import Usage

if TYPE_CHECKING:
    from callgate.launcher.host.cgroup import Group
    from callgate.launcher.local.stdio import Stdio
    from callgate.launcher.local.warden_client import Exit, Started
    from callgate.launcher.local.workspace import RunDirectory
    from callgate.launcher.plan.launch_plan import LaunchPlan
    from callgate.model import LaunchSpec, RunState, StopReason

_SIGNALLED = 128
"""A shell, and bwrap, say "ended by signal N" as this plus N."""
_SIGKILL = 9
_KILLS = frozenset({_SIGKILL, getattr(signal, "SIGXCPU", _SIGKILL)})
"""Windows knows the names of neither, and this module is used there too."""
_NEARLY = 0.5
"""The kernel ends a process by the ticks that it was seen at, and reports the time that it
had: on a busy machine those differ by a tenth and more. A kill below half is another's."""
_CALM: frozenset[StopReason] = frozenset({"stop_requested", "policy_changed", "parent_exit"})
"""Reasons for which to end is no failure."""


class Resources(Protocol):
    """What contains a run's processes and ends them: a warden, or, without one, psutil."""

    directory: RunDirectory | None = None
    group: Group | None = None

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """The end of the agent, and of everything below it as far as that is known."""

    def processes(self) -> list[int]:
        """Return the processes of the run, parents first. Blocking."""

    def terminate(self) -> None:
        """Ask the agent to end."""

    def kill(self) -> None:
        """Kill the agent and its descendants, without waiting for it."""

    async def release(self) -> None:
        """Give back whatever the host still holds for the run."""


class LocalRun:
    """A run of a launcher of this host; see `protocol.Run`."""

    def __init__(
        self,
        spec: LaunchSpec,
        run_id: str,
        *,
        resources: Resources,
        started: Started,
        stdio: Stdio,
        plan: LaunchPlan,
        token: str | None,
    ) -> None:
        self.spec = spec
        self.run_id = run_id
        self.pid = started.pid
        self.state: RunState = "running"
        self.plan = plan
        self.effective = plan.effective
        self.stdin = stdio.stdin
        self.stdout = stdio.stdout
        self.stderr = stdio.stderr
        self.channel = stdio.channel
        self.token = token
        self.resources: Resources | None = resources
        self.workspace_fd = started.workspace
        self.last_usage = Usage()
        self._cause: tuple[StopReason, LimitInfo | None] | None = None
        self._counted = Counters()
        """Of the last look. Every run has a new group, which starts at 0: a baseline that is read
        once the agent runs would hide what has ended the agent by then."""
        self._counted_before = self._counted
        """Of the look before the last: what was counted since then may be why a run ends."""
        self.ended: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()
        self._timing_out: asyncio.Task[Stopped] | None = None
        self._living = asyncio.create_task(self._live(resources))

    def usage(self) -> Usage:
        """Return the last sample."""
        return self.last_usage

    async def stop(self, reason: StopReason, grace_ns: int | None = None) -> Stopped:
        """Send SIGTERM, wait `grace_ns`, then kill the process tree."""
        self._because(reason, None)
        resources = self.resources
        if resources is not None and self.state == "running":
            resources.terminate()
            grace = self.spec.kill_grace_ns if grace_ns is None else grace_ns
            done, _ = await asyncio.wait([self.ended], timeout=grace / 1e9)
            if not done:
                resources.kill()
        return await self.wait()

    def kill(self, reason: StopReason, limit: LimitInfo | None = None) -> None:
        """Kill the process tree; the first reason counts."""
        self._because(reason, limit)
        if self.resources is not None:
            self.resources.kill()

    async def wait(self) -> Stopped:
        """Wait until the run has ended; return how it ended."""
        return await asyncio.shield(self.ended)

    async def discard(self) -> None:
        """Give up what a paused run kept."""
        await self.wait()
        resources, self.resources = self.resources, None
        if resources is not None:
            self.state = "stopped"
            self._close_workspace()
            await resources.release()

    def time_out(self) -> None:
        """Ask the agent to end, because its time is over, and kill it if it does not."""
        wall_ns = self.spec.limits.wall_time_ns
        self._because("wall_time_limit", self.limit("wall_time", wall_ns, wall_ns))
        self._timing_out = asyncio.create_task(self.stop("wall_time_limit"))

    def take_over(self) -> Resources:
        """Return what a paused run kept, for the run that resumes it."""
        resources, self.resources = self.resources, None
        if resources is None or self.state != "paused":
            raise ValueError("only a paused run can be resumed, and only once")
        self.state = "stopped"
        self._close_workspace()
        return resources

    def out_of_memory(self) -> bool:
        """Return whether the kernel has killed in this group since the last call."""
        resources = self.resources
        if resources is None or resources.group is None:
            return False
        self._counted_before, self._counted = self._counted, resources.group.counters()
        return self._counted.oom_kills > self._counted_before.oom_kills

    def _because(self, reason: StopReason, limit: LimitInfo | None) -> None:
        if self._cause is None:
            self._cause = reason, limit

    async def _live(self, resources: Resources) -> None:
        ended = await asyncio.shield(resources.exited)
        group = resources.group
        counters = Counters() if group is None else group.counters()
        stopped = self._judge(ended, counters, self._final_usage(ended, counters))
        try:
            if stopped.state != "paused":
                self.resources = None
                self._close_workspace()
                await resources.release()
        finally:
            self.state = stopped.state
            self.ended.set_result(stopped)

    def _judge(self, ended: Exit, counters: Counters, usage: Usage) -> Stopped:
        code, number = _decode(ended, sandboxed=self._sandboxed)
        if self._cause is not None:
            reason, limit = self._cause
        else:
            reason, limit = self._infer_reason(ended, code, number, counters, usage)
        state: RunState = "crashed"
        if reason == "oom":
            state = "paused"
        elif reason in _CALM or (reason == "exited" and code == 0):
            state = "stopped"
        return Stopped(reason, state, code, number, usage, limit)

    def _infer_reason(
        self,
        ended: Exit,
        code: int | None,
        number: int | None,
        counters: Counters,
        usage: Usage,
    ) -> tuple[StopReason, LimitInfo | None]:
        limits = self.spec.limits
        failed = number is not None or code != 0
        if failed and counters.oom_kills > self._counted_before.oom_kills:
            used = usage.memory_peak_bytes
            return "oom", self.limit("memory", limits.memory_bytes, used)
        killed = number in _KILLS
        cpu = limits.cpu_time_ns
        if killed and cpu is not None and ended.cpu_ns >= cpu * _NEARLY:
            return "cpu_time_limit", self.limit("cpu_time", cpu, ended.cpu_ns)
        if failed and counters.forks_refused > self._counted_before.forks_refused:
            return "pids_limit", self.limit("pids", limits.pids, limits.pids)
        return ("signal" if number is not None else "exited"), None

    def limit(self, kind: str, limit: int | None, used: int | None) -> LimitInfo | None:
        """Return what is reported of a limit that ended the run."""
        if limit is None:
            return None
        return LimitInfo(kind, f"agent:{self.spec.agent}", limit, used)

    def _final_usage(self, ended: Exit, counters: Counters) -> Usage:
        """Return the last sample, with what is known exactly only at the end."""
        last = self.last_usage
        peak = max(ended.peak_bytes, counters.peak_bytes, last.memory_peak_bytes or 0)
        cpu_ns = max(ended.cpu_ns, counters.cpu_ns, last.cpu_ns or 0)
        disk_bytes = last.disk_bytes
        if self.workspace_fd is not None:
            status = os.statvfs(self.workspace_fd)
            disk_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
        return msgspec.structs.replace(
            last, cpu_ns=cpu_ns, memory_peak_bytes=peak or None, disk_bytes=disk_bytes
        )

    @property
    def _sandboxed(self) -> bool:
        return self.plan.sandbox is not None

    def _close_workspace(self) -> None:
        if self.workspace_fd is not None:
            os.close(self.workspace_fd)
            self.workspace_fd = None


def _decode(ended: Exit, *, sandboxed: bool) -> tuple[int | None, int | None]:
    """Return (exit code, signal); bwrap ends with 128 + N for an agent that signal N ended.

    So it does for one that exits with that code. Where the kernel told how the agent itself
    ended, that decides.
    """
    if ended.status is None:
        return None, _SIGKILL
    code = os.waitstatus_to_exitcode(ended.status)
    if code < 0:
        return None, -code
    if sandboxed and _SIGNALLED < code < _SIGNALLED + signal.NSIG:
        if ended.inner is not None and os.waitstatus_to_exitcode(ended.inner) == code:
            return code, None
        return None, code - _SIGNALLED
    return code, None
