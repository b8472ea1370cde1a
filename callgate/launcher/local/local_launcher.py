"""The built-in launcher: plan, apply the layers, keep the runs, look at them.

Everything that may block is done in a thread before anything is started. From then on only
messages go to and fro. A launch that fails, or whose caller is cancelled half way, leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec

from callgate.launcher import limit_message
from callgate.launcher.host import cgroup, command, helper_program, places, programs, survey
from callgate.launcher.local import run_resources, warden_job, workspace
from callgate.launcher.local.local_run import LocalRun
from callgate.launcher.local.monitor import Monitor
from callgate.launcher.local.run_resources import RunResources
from callgate.launcher.local.stdio import Stdio
from callgate.launcher.local.warden_client import StepFailed, WardenProcess
from callgate.launcher.plan import bwrap
from callgate.launcher.plan.launch_plan import LaunchPlan, Refusal, plan
from callgate.launcher.protocol import LaunchRefused, gaps_text
from callgate.launcher.warden.shim import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from callgate.errors import LimitInfo
    from callgate.launcher.host.places import Places
    from callgate.launcher.plan.capabilities import Host
    from callgate.launcher.protocol import Run
    from callgate.model import LaunchSpec

_LOG = logging.getLogger("callgate.launcher")
_MAX_NAME_CHARS = 64
TOKEN_BYTES = 32
"""Of a session's token, as the runtime protocol says."""


class LocalLauncher:
    """Starts agents on this host. Close it, or leave its `async with`, to end them all.

    `root` is where runs keep their directories, `environ` what agents' variables come from.
    """

    def __init__(
        self, *, root: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._root = workspace.default_root() if root is None else root
        self._environ = os.environ if environ is None else environ
        self._host: Host | None = None
        self._tried: set[str] = set()
        self._surveying = asyncio.Lock()
        self._swept = False
        self._closed = asyncio.Event()
        self._runs: dict[str, LocalRun] = {}
        self._monitor = Monitor()
        self._places: Places = {}
        self._adding_places = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def runs(self) -> Mapping[str, LocalRun]:
        """The runs that have not ended, and those that are paused."""
        return self._runs

    async def plan(self, spec: LaunchSpec) -> LaunchPlan:
        """Return what a launch of the spec would do; raises `LaunchRefused`."""
        host = await self._survey(spec)
        await asyncio.to_thread(self._add_places, spec)
        asked = (spec.command[0], self._environ, spec.cwd, self._places)
        found = await asyncio.to_thread(command.find, *asked)
        if found is None:
            gaps = {"command": f"{spec.command[0]} is not a program that can be run"}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="command")
        if spec.programs is not None:
            asked_for = (spec.programs, found.path, self._environ, spec.cwd)
            try:
                listed = await asyncio.to_thread(programs.files, *asked_for)
            except programs.NotFound as error:
                gaps = {"exec": f"{error} is not a program that can be run"}
                raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="exec") from None
            found = msgspec.structs.replace(found, programs=listed)
        decided = plan(spec, host, found)
        if isinstance(decided, Refusal):
            raise LaunchRefused(agent=spec.agent, gaps=decided.gaps)
        return decided

    async def launch(
        self,
        spec: LaunchSpec,
        *,
        run_id: str,
        on_warning: Callable[[LimitInfo], None] | None = None,
        resume: Run | None = None,
    ) -> LocalRun:
        """Start an agent; see `protocol.Launcher`."""
        if self._closed.is_set() or run_id in self._runs:
            raise ValueError(f"the launcher is closed, or has a run {run_id} already")
        decided = await self.plan(spec)
        if isinstance(resume, LocalRun):
            decided = decided.in_workspace_of(resume.plan)
        if decided.gaps:
            gaps = gaps_text(decided.gaps)
            _LOG.error("agent %s runs with degraded containment: %s", spec.agent, gaps)
        if resume is None:
            held = await self._hold(decided, run_id)
        else:
            held = await self._resume(resume, decided, run_id)
        try:
            run = await self._start(spec, decided, run_id, held)
        except BaseException:
            await asyncio.shield(held.release())
            raise
        self._runs[run_id] = run
        run.ended.add_done_callback(lambda _: self._forget(run))
        self._monitor.add(run, on_warning)
        if self._closed.is_set():
            run.kill("stop_requested")
        return run

    async def aclose(self) -> None:
        """Kill every run and wait until nothing of them is left."""
        self._closed.set()
        for run in list(self._runs.values()):
            run.kill("stop_requested")
        for run in list(self._runs.values()):
            await run.discard()
        self._runs.clear()
        await self._monitor.aclose()

    def _add_places(self, spec: LaunchSpec) -> None:
        """Add the agent's writable mounts; refuse what would let a run change what we execute."""
        with self._adding_places:  # plans are made in threads, for many agents at once
            try:
                places.add(self._places, spec)
            except OSError as error:
                raise _refused(spec.agent, error, "mounts") from None
            if not self._places or spec.level == "privileged":
                return
            fault = helper_program.find_written(self._places, self._root)
        if fault is not None:
            gaps = {"mounts": f"{fault}: mount less of it, or read-only"}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="mounts")

    async def _survey(self, spec: LaunchSpec) -> Host:
        """Return the host, looked at as far as the spec needs, and only once."""
        async with self._surveying:
            host = self._host
            if host is None:
                host = await asyncio.to_thread(survey.survey)
            if spec.contained and "groups" not in self._tried:
                host = await asyncio.to_thread(survey.with_groups, host)
                self._tried.add("groups")
            if spec.level != "privileged" and "sandbox" not in self._tried:
                host = await asyncio.to_thread(survey.with_sandbox, host)
                self._tried.add("sandbox")
            self._host = host
        if spec.contained and spec.cgroup_parent is not None:
            return await asyncio.to_thread(survey.with_groups, host, spec.cgroup_parent)
        return host

    async def _hold(self, decided: LaunchPlan, run_id: str) -> RunResources:
        """Make a warden, and the directory and the group that the plan has."""
        directory, group = None, None
        if decided.cgroup is not None or decided.workspace is not None:
            making = asyncio.ensure_future(asyncio.to_thread(self._make, decided, _name(run_id)))
            try:
                directory, group = await asyncio.shield(making)
            except OSError as error:
                raise _refused(decided.agent, error) from None
            except asyncio.CancelledError:
                with suppress(OSError):  # a thread cannot be cancelled: what it made must go
                    run_resources.unmake(*await making)
                raise
        try:
            return RunResources(WardenProcess.spawn(), directory, group)
        except OSError as error:
            run_resources.unmake(directory, group)
            raise _refused(decided.agent, error, "warden") from None

    async def _resume(self, paused: Run, decided: LaunchPlan, run_id: str) -> RunResources:
        """Take over what a paused run kept, unless it no longer fits what the policy asks for."""
        if not isinstance(paused, LocalRun):
            raise TypeError("only a run of this launcher can be resumed")
        before = paused.plan
        parts = (before.sandbox, before.workspace, before.drop)
        same = parts == (decided.sandbox, decided.workspace, decided.drop)
        if not same or bwrap.needs_fresh_workspace(decided.sandbox):
            _LOG.warning("agent %s begins anew: its containment has changed", decided.agent)
            await paused.discard()
            self._runs.pop(paused.run_id, None)
            return await self._hold(decided, run_id)
        held = paused.take_over()
        assert isinstance(held, RunResources)  # noqa: S101  # a run of ours has no other
        self._runs.pop(paused.run_id, None)
        try:
            if decided.cgroup is not None and self._host is not None:
                groups = self._host.cgroups
                await asyncio.to_thread(held.renew_group, groups, decided, _name(run_id))
        except BaseException as error:
            await asyncio.shield(held.release())
            if isinstance(error, OSError):
                raise _refused(decided.agent, error) from None
            raise
        return held

    def _make(
        self, decided: LaunchPlan, name: str
    ) -> tuple[workspace.RunDirectory, cgroup.Group | None]:
        assert self._host is not None  # noqa: S101  # the plan was made from it
        if not self._swept:
            self._swept = True
            workspace.sweep(self._root)
        return run_resources.make(self._root, self._host.cgroups, decided, name)

    async def _start(
        self, spec: LaunchSpec, decided: LaunchPlan, run_id: str, held: RunResources
    ) -> LocalRun:
        assert self._host is not None  # noqa: S101  # the plan was made from it
        token = secrets.token_urlsafe(TOKEN_BYTES) if spec.protocol == "runtime" else None
        known = tuple(self._places)
        holds = (held.directory, held.group, token, held.mark, known)
        inputs = warden_job.JobInputs(self._host, self._environ, *holds)
        stdio: Stdio | None = None
        beside: dict[str, int] = {}
        try:
            stdio = Stdio(spec)
            told, beside = warden_job.make(spec, decided, inputs)
            started = await held.warden.start(told, {**stdio.theirs, **beside})
        except BaseException as error:
            if stdio is not None:
                stdio.close()
            if isinstance(error, StepFailed):
                stage, why = _cause(error, spec, held)
                raise LaunchRefused(agent=spec.agent, gaps={stage: why}, stage=stage) from None
            if isinstance(error, OSError):
                raise _refused(spec.agent, error) from None
            raise
        finally:
            for fd in beside.values():
                os.close(fd)
        stdio.handed_over()
        return LocalRun(
            spec, run_id, resources=held, started=started, stdio=stdio, plan=decided, token=token
        )

    def _forget(self, run: LocalRun) -> None:
        if run.state != "paused" and self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]


def _name(run_id: str) -> str:
    """Return a name for the run's directory and groups: told from the id, never used twice."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in run_id)
    return f"{safe[:_MAX_NAME_CHARS]}-{secrets.token_hex(4)}"


def _cause(error: StepFailed, spec: LaunchSpec, held: RunResources) -> tuple[str, str]:
    """Return the step that failed and why; whoever the kernel kills on the way says nothing."""
    limit = spec.limits.memory_bytes
    if limit is not None and held.group is not None and held.group.counters().oom_kills:
        return "memory", f"{limit_message.size(limit)} are not enough to start it"
    return error.stage, error.error or "failed and gave no reason"


def _refused(agent: str, error: OSError, stage: str = "prepare") -> LaunchRefused:
    step = "cgroup" if isinstance(error, cgroup.CgroupError) else stage
    return LaunchRefused(agent=agent, gaps={step: describe(error)}, stage=stage)
