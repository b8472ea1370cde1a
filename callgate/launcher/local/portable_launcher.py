"""The process layer where there is neither fork nor a warden: Windows.

An agent is started as it is, watched through psutil, and ended with every process that
psutil finds below it. That is weaker than a warden: nobody ends it after a killed callgate,
and a process whose parent has gone is no longer found. Where Python has `resource`, a small
process sets rlimits and a lower priority for itself and becomes the agent; Windows has none.
The plan says all this as `absent` or `degraded`, and a policy that asks for more is refused.

Never run on Windows: its tests run on Linux, where it works in the same way, and once more with
`resource` hidden. Job Objects would close the gaps and are for a plugin, as Apple's containers
are on macOS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from callgate.launcher.host import command
from callgate.launcher.host.lean_process import interpreter, stub
from callgate.launcher.host.process_tree import count_of_user, descendants, kill_tree
from callgate.launcher.local.local_run import LocalRun, Resources
from callgate.launcher.local.monitor import Monitor
from callgate.launcher.local.stdio import Stdio
from callgate.launcher.local.warden_client import Exit, Started
from callgate.launcher.plan import environment
from callgate.launcher.plan.capabilities import RLIMITS, Capability, Host
from callgate.launcher.plan.launch_plan import PROCESSES, LaunchPlan, Refusal, plan
from callgate.launcher.protocol import LaunchRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.errors import LimitInfo
    from callgate.launcher.protocol import Run
    from callgate.model import LaunchSpec


def this_host() -> Host:
    """Return what can be held here: rlimits, where Python has them."""
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        names: tuple[str, ...] = ()
    else:
        names = tuple(name for name in RLIMITS if hasattr(resource, name))
    return Host(
        platform="posix" if names else "win32",
        rlimits=names,
        warden=Capability(False, "no warden: what outlives its parent is not found"),
        workspaces=False,
        bwrap=Capability(False, "there is no bwrap on this system"),
    )


class PortableLauncher:
    """Starts agents without containment but for what psutil can watch; see `LocalLauncher`."""

    def __init__(self, *, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.runs: dict[str, LocalRun] = {}
        self._monitor = Monitor()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def plan(self, spec: LaunchSpec) -> LaunchPlan:
        """Return what a launch of the spec would do; raises `LaunchRefused`."""
        found = await asyncio.to_thread(command.find, spec.command[0], self._environ, spec.cwd)
        if found is None:
            gaps = {"command": f"{spec.command[0]} is not a program that can be run"}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="command")
        decided = plan(spec, this_host(), found)
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
    ) -> LocalRun:
        """Start an agent; nothing is ever paused here, so there is nothing to resume."""
        if resume is not None:
            raise TypeError("only a run of this launcher can be resumed")
        decided = await self.plan(spec)
        stdio: Stdio | None = None
        try:
            env = environment.build(spec, self._environ, None, decided.argv[0])
            words = await asyncio.to_thread(_limited, decided, env)
            stdio = Stdio(spec)
            process = subprocess.Popen(  # noqa: ASYNC220, S603  # from a local file, no shell
                words,
                stdin=stdio.theirs["stdin"],
                stdout=stdio.theirs["stdout"],
                stderr=stdio.theirs["stderr"],
                bufsize=0,
                cwd=spec.cwd,
                env=env,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except (OSError, ValueError) as error:  # the latter for a command with a NUL in it
            if stdio is not None:
                stdio.close()
            gaps = {"exec": getattr(error, "strerror", None) or str(error)}
            raise LaunchRefused(agent=spec.agent, gaps=gaps, stage="exec") from None
        stdio.handed_over()
        run = LocalRun(
            spec,
            run_id,
            resources=ProcessTree(process),
            started=Started(process.pid, process.pid, None),
            stdio=stdio,
            plan=decided,
            token=None,
        )
        self.runs[run_id] = run
        run.ended.add_done_callback(lambda _: self.runs.pop(run_id, None))
        self._monitor.add(run, on_warning)
        return run

    async def aclose(self) -> None:
        """Kill every run and wait until nothing of them is left."""
        for run in list(self.runs.values()):
            run.kill("stop_requested")
        for run in list(self.runs.values()):
            await run.wait()
        await self._monitor.aclose()


def _limited(decided: LaunchPlan, env: Mapping[str, str]) -> list[str]:
    """Return the agent's words, behind those of the process that limits itself, if it must."""
    rlimits = dict(decided.rlimits)
    if not rlimits and not decided.nice:
        return list(decided.argv)
    if PROCESSES in rlimits:
        rlimits[PROCESSES] += count_of_user()
    limits = ",".join(f"{name}={value}" for name, value in rlimits.items())
    names = "\n".join(env)
    start = [interpreter(), "-I", "-S", "-c", stub("limiter"), limits, str(decided.nice), names]
    return [*start, *decided.argv]


class ProcessTree(Resources):
    """A process and those that psutil finds below it; a thread waits for its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[Exit] = self._loop.create_future()
        threading.Thread(target=self._wait, name="callgate-wait", daemon=True).start()

    @property
    def exited(self) -> asyncio.Future[Exit]:
        """The end of the process itself."""
        return self._exited

    def processes(self) -> list[int]:
        """Return the process and its descendants."""
        return [self._process.pid, *descendants(self._process.pid)]

    def terminate(self) -> None:
        """Ask the process to end."""
        with suppress(OSError, ValueError):
            self._process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))

    def kill(self) -> None:
        """Kill the process and its descendants."""
        threading.Thread(target=kill_tree, args=(self._process.pid,), daemon=True).start()

    async def release(self) -> None:
        """Nothing is held for it."""

    def _wait(self) -> None:
        code = self._process.wait()
        ended = Exit(-code if code < 0 else code << 8)  # as waitpid(2) has it
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._exited.set_result, ended)
