"""The life of a run: starting, running, and the one reason for which it ended.

    starting → running → stopped   it ended as asked, or by itself without a failure
                       → crashed   it failed, was killed, or reached a limit
                       → paused    the kernel ran out of its memory; its workspace is kept

Who ends a run says why before it kills; the first reason counts. If nobody did, the end is
told from the exit status and from the kernel's counters: a SIGKILL is `oom` only if the
group's counter grew, else it is somebody's `signal`. The workspace is counted once more before
that: a run that was too short for a sample, and left more than it may, has reached a limit.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from callgate.errors import LimitInfo
from callgate.launcher.local.daemon_thread import in_daemon_thread
from callgate.launcher.local.limit_check import Bounds, Sample, check_usage
from callgate.launcher.local.workspace_usage import Workspace, filesystem_use
from callgate.launcher.plan import bwrap
from callgate.launcher.plan.cgroup_plan import Counters
from callgate.launcher.protocol import LIMIT_REASONS, Stopped
from callgate.model import ResourceLimits, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from callgate.launcher.host.cgroup import Group
    from callgate.launcher.local.stdio import Stdio
    from callgate.launcher.local.warden_client import Exit, Started
    from callgate.launcher.local.workspace import RunDirectory
    from callgate.launcher.plan.launch_plan import LaunchPlan
    from callgate.model import LaunchSpec, RunState, StopReason

_SECOND_NS = 1_000_000_000
_SIGNALLED = 128
"""A shell, and bwrap, say "ended by signal N" as this plus N."""
_SIGKILL = 9
_KILLS = frozenset({_SIGKILL, getattr(signal, "SIGXCPU", _SIGKILL)})
_FILE_TOO_LONG = getattr(signal, "SIGXFSZ", None)
"""Windows knows the names of neither, and this module is used there too."""
_NEARLY = 0.5
"""The kernel ends a process by the ticks that it was seen at, and reports the time that it
had: on a busy machine those differ by a tenth and more. A kill below half is another's."""
_CALM: frozenset[StopReason] = frozenset({"stop_requested", "policy_changed", "parent_exit"})
"""Reasons for which to end is no failure."""
LAST_LOOK_S: Final = 10.0
"""A count of files gives up by itself long before; only a file system that hangs takes longer."""


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
        self.scope = f"agent:{spec.agent}"
        self.limits = plan.limits(spec.limits)
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
        last = await self._last_look(resources)
        stopped = self._judge(ended, counters, last)
        try:
            if stopped.state != "paused":
                self.resources = None
                self._close_workspace()
                await resources.release()
        finally:
            self.state = stopped.state
            self.ended.set_result(stopped)

    def workspace_reader(
        self, resources: Resources, pids: Callable[[], Iterable[int]] = tuple
    ) -> Callable[[], tuple[int, int] | None] | None:
        """Return what counts the agent's bytes and files; None if nothing bounds them.

        The counter blocks. It returns None for what cannot be counted.
        """
        plan, directory = self.plan.workspace, resources.directory
        if plan is None or directory is None:
            return None
        counted = Workspace(directory.workspace, pids)
        places = bwrap.count_mount_points(self.plan.sandbox)  # nothing of the agent's

        def read() -> tuple[int, int] | None:
            mounted = self.workspace_fd
            if mounted is not None:
                size, files = filesystem_use(mounted)
                return size, max(0, files - len(directory.parts) - places)
            found = None if plan.tmpfs else counted.read()
            if found is None:
                return None
            size, files = directory.own_use()
            return max(0, found[0] - size), max(0, found[1] - files - places)

        return read

    async def _last_look(self, resources: Resources) -> Sample:
        """Return the last sample, with the workspace as every process has left it."""
        read = self.workspace_reader(resources)
        if read is None:
            return Sample(self.last_usage)
        counted = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LAST_LOOK_S):
                counted = await in_daemon_thread(read)
        if counted is None:
            return Sample(self.last_usage, frozenset({"disk", "files"}))
        size, files = counted
        return Sample(msgspec.structs.replace(self.last_usage, disk_bytes=size, files=files))

    def _judge(self, ended: Exit, counters: Counters, last: Sample) -> Stopped:
        code, number = _decode(ended, sandboxed=self._sandboxed)
        usage = self._final_usage(ended, counters, last.usage)
        if self._cause is not None:
            reason, limit = self._cause
        else:
            reason, limit = self._infer_reason(ended, code, number, counters, usage)
            over = self._overfull(last) if reason in ("exited", "signal") else None
            if over is not None:
                reason, limit = LIMIT_REASONS[over.type], over
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
            used = counters.peak_bytes or None  # of the group, which the limit is about
            return "oom", self.limit("memory", limits.memory_bytes, used)
        killed = number in _KILLS
        cpu = limits.cpu_time_ns
        if killed and cpu is not None and ended.cpu_ns >= cpu * _NEARLY:
            # By the kernel's count of one process, in whole seconds; `usage` has the exact sum.
            counted = dict(self.plan.rlimits).get("RLIMIT_CPU")
            used = None if counted is None else counted * _SECOND_NS
            return "cpu_time_limit", self.limit("cpu_time", cpu, used)
        if failed and counters.forks_refused > self._counted_before.forks_refused:
            return "pids_limit", self.limit("pids", limits.pids, limits.pids)
        held = dict((*self.plan.rlimits, *self.plan.late_rlimits))
        if number is not None and number == _FILE_TOO_LONG and "RLIMIT_FSIZE" in held:
            return "disk_limit", self.limit("disk", self.limits.disk_bytes, usage.disk_bytes)
        return ("signal" if number is not None else "exited"), None

    def _overfull(self, last: Sample) -> LimitInfo | None:
        """Return the limit of the workspace that the agent left exceeded."""
        if self.plan.workspace is None:
            return None
        left = Usage(disk_bytes=last.usage.disk_bytes, files=last.usage.files)
        bounds = Bounds(self.scope, self.limits, ResourceLimits(), self.plan.kernel)
        return check_usage((), Sample(left, last.uncounted), bounds).end

    def limit(self, kind: str, limit: int | None, used: int | None) -> LimitInfo | None:
        """Return what is reported of a limit that ended the run."""
        if limit is None:
            return None
        return LimitInfo(kind, self.scope, limit, used)

    def _final_usage(self, ended: Exit, counters: Counters, last: Usage) -> Usage:
        """Return the last sample, with what is known exactly only at the end."""
        # What a process has resident counts pages that others pay for, which a group does not.
        peak = counters.peak_bytes or max(ended.peak_bytes, last.memory_peak_bytes or 0)
        cpu_ns = max(ended.cpu_ns, counters.cpu_ns, last.cpu_ns or 0)
        return msgspec.structs.replace(last, cpu_ns=cpu_ns, memory_peak_bytes=peak or None)

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
