"""The process layer where there is neither fork nor a warden: Windows.

An agent is started as it is, watched through psutil, and ended with every process that
psutil finds below it. That is weaker than a warden: nobody ends it after a killed callgate,
and a process whose parent has gone is no longer found. There are no rlimits. The plan says
all this as `absent` or `degraded`, and a policy that asks for more is refused.

Untested on Windows: its tests run on Linux, where it works in the same way. Job Objects
would close the gaps and are for a plugin, as Apple's containers are on macOS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec

from callgate.errors import LimitInfo
from callgate.launcher import command, environment
from callgate.launcher.host import Capability, Host
from callgate.launcher.kill import kill_tree
from callgate.launcher.monitor import Bounds
from callgate.launcher.plan import LaunchPlan, Refusal, plan
from callgate.launcher.protocol import LaunchRefused, Stopped
from callgate.launcher.samplers import Sampler, descendants
from callgate.launcher.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.launcher.protocol import Run
    from callgate.model import LaunchSpec, RunState, StopReason, Usage

HOST = Host(
    platform="win32",
    warden=Capability(False, "no warden: what outlives its parent is not found"),
    bwrap=Capability(False, "there is no bwrap on this system"),
)
_CALM: frozenset[StopReason] = frozenset({"stop_requested", "policy_changed", "parent_exit"})


class PortableLauncher:
    """Starts agents without containment but for what psutil can watch; see `LocalLauncher`."""

    def __init__(self, *, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.runs: dict[str, PortableRun] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def plan(self, spec: LaunchSpec) -> LaunchPlan:
        """What a launch of the spec would do; raises `LaunchRefused`."""
        found = await asyncio.to_thread(command.find, spec.command[0], self._environ, spec.cwd)
        if found is None:
            gaps = {"command": f"{spec.command[0]} is not a program that can be run"}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="command")
        decided = plan(spec, HOST, found)
        gaps = decided.gaps if isinstance(decided, Refusal) else {}
        if spec.terminal:
            gaps["terminal"] = "not on this system"
        if spec.protocol == "runtime":
            gaps["channel"] = "a socket cannot be handed to a process on this system"
        if gaps or isinstance(decided, Refusal):
            raise LaunchRefused(agent=spec.agent, gaps=gaps)
        return decided

    async def launch(
        self,
        spec: LaunchSpec,
        *,
        run_id: str,
        on_warning: Callable[[LimitInfo], None] | None = None,
        resume: Run | None = None,
    ) -> PortableRun:
        """Start an agent; nothing is ever paused here, so there is nothing to resume."""
        if resume is not None:
            raise TypeError("only a run of this launcher can be resumed")
        decided = await self.plan(spec)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220, S603  # from a local file, no shell
                decided.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=spec.cwd,
                env=environment.build(spec, self._environ, None, decided.argv[0]),
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            gaps = {"exec": error.strerror or "failed"}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="exec") from None
        run = PortableRun(spec, run_id, process, decided, on_warning)
        self.runs[run_id] = run
        run.ended.add_done_callback(lambda _: self.runs.pop(run_id, None))
        return run

    async def aclose(self) -> None:
        """Kill every run and wait until nothing of them is left."""
        for run in list(self.runs.values()):
            run.kill("stop_requested")
        for run in list(self.runs.values()):
            await run.wait()


class PortableRun:
    """A process and a thread that waits for it; see `protocol.Run`."""

    def __init__(
        self,
        spec: LaunchSpec,
        run_id: str,
        process: subprocess.Popen[bytes],
        decided: LaunchPlan,
        on_warning: Callable[[LimitInfo], None] | None,
    ) -> None:
        self.run_id = run_id
        self.pid = process.pid
        self.state: RunState = "running"
        self.effective = decided.effective
        self.stdin, self.stdout, self.stderr = (
            _detached(stream) for stream in (process.stdin, process.stdout, process.stderr)
        )
        self.channel: int | None = None
        self.token: str | None = None
        self._spec = spec
        self._process = process
        self._cause: tuple[StopReason, LimitInfo | None] | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Stopped] = self._loop.create_future()
        bounds = Bounds(f"agent:{spec.agent}", spec.limits, spec.shadow)
        sampler = Sampler(lambda: [self.pid, *descendants(self.pid)])
        self._watch = Watch(sampler.look, bounds, on_warning=on_warning)
        self._watching = asyncio.create_task(self._until_over())
        threading.Thread(target=self._wait, name="callgate-wait", daemon=True).start()

    def usage(self) -> Usage:
        """The last look at it."""
        return self._watch.usage

    async def stop(self, reason: StopReason, grace_ns: int | None = None) -> Stopped:
        """Ask, wait, kill."""
        self._cause = self._cause or (reason, None)
        with suppress(OSError, ValueError):
            self._process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
        grace = self._spec.kill_grace_ns if grace_ns is None else grace_ns
        done, _ = await asyncio.wait([self.ended], timeout=grace / 1e9)
        if not done:
            self.kill(reason)
        return await self.wait()

    def kill(self, reason: StopReason, limit: LimitInfo | None = None) -> None:
        """End the tree now."""
        self._cause = self._cause or (reason, limit)
        threading.Thread(target=kill_tree, args=(self.pid,), daemon=True).start()

    async def wait(self) -> Stopped:
        """The end."""
        return await asyncio.shield(self.ended)

    async def discard(self) -> None:
        """Nothing is kept here."""
        await self.wait()

    async def _until_over(self) -> None:
        """Until a limit is reached, be it the time or one that is measured."""
        wall_ns = self._spec.limits.wall_time_ns
        try:
            async with asyncio.timeout(None if wall_ns is None else wall_ns / 1e9):
                while (end := await self._watch.look_once()) is None:  # noqa: ASYNC110  # a clock
                    await asyncio.sleep(self._spec.monitor_interval_ns / 1e9)
            self.kill(end.reason, end.limit)
        except TimeoutError:
            scope = f"agent:{self._spec.agent}"
            limit = LimitInfo("wall_time", scope, wall_ns or 0, wall_ns)
            self._cause = self._cause or ("wall_time_limit", limit)
            await self.stop("wall_time_limit")

    def _wait(self) -> None:
        code = self._process.wait()
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        self._watching.cancel()
        number = -code if code < 0 else None
        reason, limit = self._cause or (("signal" if number else "exited"), None)
        calm = reason in _CALM or (reason == "exited" and code == 0)
        self.state = "stopped" if calm else "crashed"
        exit_code = None if number else code
        usage = msgspec.structs.replace(self._watch.usage)
        self.ended.set_result(Stopped(reason, self.state, exit_code, number, usage, limit))


def _detached(stream: object) -> int:
    """A descriptor of ours in the place of a file object that would close it."""
    fd: int = os.dup(stream.fileno())  # type: ignore[attr-defined]
    stream.close()  # type: ignore[attr-defined]
    set_blocking = getattr(os, "set_blocking", None)  # on Windows only from Python 3.12 on
    if set_blocking is not None:
        set_blocking(fd, False)
    return fd
