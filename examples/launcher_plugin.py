"""A launcher of your own: agents in containers, by Docker, Podman or anything that talks alike.

A launcher is any object with `launch` and `aclose`; see `callgate.launcher.protocol`. This
one turns a policy's limits into options of `docker run` and lets the built-in launcher run
that command, so pipes, the end and the warden need not be written again. Only what differs
is here: the options, what they enforce, and that ending the client does not end a container.

A package that ships it names it in its `pyproject.toml`:

    [project.entry-points."callgate.launchers"]
    docker = "launcher_plugin:DockerLauncher"

and then `launcher: docker` of an agent in a policy has it, or the option `--launcher docker` of
`callgate run` and `callgate exec`.

Windows Job Objects, Apple's containers, Kubernetes or a microVM are done the same way.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from callgate.launcher import Effect, LaunchRefused, LocalLauncher
from callgate.model import EnvSpec, LaunchSpec, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import LimitInfo
    from callgate.launcher import Run, Stopped, Usage
    from callgate.model import RunState, StopReason

ENGINE = os.environ.get("CALLGATE_ENGINE", "docker")
IMAGE = os.environ.get("CALLGATE_IMAGE", "python:3.12-slim")
HELD = ("memory_bytes", "cpu_millicores", "pids", "open_files")
"""Limits that the engine holds; the rest of a policy's limits are refused below."""


class DockerLauncher:
    """Every agent in a container of its own."""

    def __init__(self) -> None:
        self._local = LocalLauncher()

    async def launch(
        self,
        spec: LaunchSpec,
        *,
        run_id: str,
        on_warning: Callable[[LimitInfo], None] | None = None,
        resume: Run | None = None,
    ) -> ContainerRun:
        """Start a container; refuses what the engine cannot hold."""
        gaps = unheld(spec)
        if resume is not None:
            gaps["resume"] = "not supported"
        if gaps:
            raise LaunchRefused(agent=spec.agent, gaps=gaps)
        name = f"callgate-{run_id}"
        outer = LaunchSpec(
            agent=spec.agent,
            command=(ENGINE, "run", "--name", name, *options(spec), IMAGE, *spec.command),
            limits=ResourceLimits(wall_time_ns=spec.limits.wall_time_ns),
            env=EnvSpec(withheld=spec.env.withheld),
            monitor_interval_ns=spec.monitor_interval_ns,
            kill_grace_ns=spec.kill_grace_ns,
        )
        run = await self._local.launch(outer, run_id=run_id, on_warning=on_warning)
        return ContainerRun(run, name, effects(spec))

    async def aclose(self) -> None:
        """End every client; `--rm` and `--init` let the engine clean up behind it."""
        await self._local.aclose()


def unheld(spec: LaunchSpec) -> dict[str, str]:
    """What was asked for and cannot be had, with the reason. Nothing falls away in silence.

    A limit that nobody wrote, only `containment` brings it, is no reason to refuse.
    """
    limits = msgspec.structs.asdict(spec.limits)
    if "disk" in spec.assumed:
        limits["disk_bytes"] = None
    gaps = {
        name: "this launcher does not hold it"
        for name, value in limits.items()
        if value is not None and name not in (*HELD, "wall_time_ns")
    }
    if spec.protocol == "runtime":
        gaps["protocol"] = "a container gets no socket of ours"
    if spec.terminal:
        gaps["terminal"] = "not supported"
    return gaps


def options(spec: LaunchSpec) -> list[str]:
    """What `docker run` is told. Values of variables go by name, never in an argument."""
    limits = spec.limits
    words = ["--rm", "--interactive", "--init", "--cap-drop=ALL"]
    words += ["--security-opt=no-new-privileges"]
    if spec.level in ("strict", "standard"):
        words.append("--network=none")
    if spec.level == "strict":
        words.append("--read-only")
    if limits.memory_bytes is not None:
        # The same for memory and swap together leaves no swap.
        words += [f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"]
    if limits.cpu_millicores is not None:
        words.append(f"--cpus={limits.cpu_millicores / 1000}")
    if limits.pids is not None:
        words.append(f"--pids-limit={limits.pids}")
    if limits.open_files is not None:
        words.append(f"--ulimit=nofile={limits.open_files}")
    for mount in spec.mounts:
        mode = "ro" if mount.read_only or spec.level == "strict" else "rw"
        words.append(f"--volume={mount.path}:{mount.path}:{mode}")
    words += [f"--env={name}" for name in (*spec.env.names, *spec.env.secret)]
    return words


def effects(spec: LaunchSpec) -> dict[str, Effect]:
    """What holds, as the engine says; a careful plugin would look into the container."""
    by_engine = Effect("enforced", ENGINE)
    asked = {
        "memory": spec.limits.memory_bytes,
        "cpu": spec.limits.cpu_millicores,
        "pids": spec.limits.pids,
        "open_files": spec.limits.open_files,
    }
    found = {name: by_engine for name, value in asked.items() if value is not None}
    found |= dict.fromkeys(("namespaces", "filesystem", "seccomp", "environment"), by_engine)
    if spec.level in ("strict", "standard"):
        found["network"] = by_engine
    if spec.limits.disk_bytes is not None:
        found["disk"] = Effect("absent", "this launcher does not hold it")
    return found


class ContainerRun:
    """The client's run, but for what concerns the container."""

    def __init__(self, run: Run, container: str, effective: dict[str, Effect]) -> None:
        self._run = run
        self._container = container
        self.effective = effective
        self.run_id, self.pid = run.run_id, run.pid
        self.stdin, self.stdout, self.stderr = run.stdin, run.stdout, run.stderr
        self.channel: int | None = None
        self.token: str | None = None
        self._removing: asyncio.Task[None] | None = None

    @property
    def state(self) -> RunState:
        """The client's, which lives as long as the container."""
        return self._run.state

    def usage(self) -> Usage:
        """Of the client only; `docker stats` would tell of the container."""
        return self._run.usage()

    async def stop(self, reason: StopReason, grace_ns: int | None = None) -> Stopped:
        """SIGTERM to the client is handed on to the container by the engine."""
        stopped = await self._run.stop(reason, grace_ns)
        await self._remove()
        return stopped

    def kill(self, reason: StopReason, limit: LimitInfo | None = None) -> None:
        """Kill the client, and the container behind it."""
        self._run.kill(reason, limit)
        self._removing = asyncio.create_task(self._remove())

    async def wait(self) -> Stopped:
        """The end."""
        return await self._run.wait()

    async def discard(self) -> None:
        """Nothing is kept."""
        await self._run.wait()

    async def _remove(self) -> None:
        """A container outlives a client that was killed."""
        process = await asyncio.create_subprocess_exec(
            *(ENGINE, "rm", "--force", self._container),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()


async def main(words: list[str]) -> None:
    """Run one command in a container and show what it printed."""
    limits = ResourceLimits(memory_bytes=256 * 1024 * 1024, cpu_millicores=500, pids=32)
    spec = LaunchSpec("example", tuple(words), level="standard", contained=True, limits=limits)
    launcher = DockerLauncher()
    try:
        run = await launcher.launch(spec, run_id="example")
        os.close(run.stdin)
        stopped = await run.wait()
        with os.fdopen(run.stdout, "rb") as out, os.fdopen(run.stderr, "rb") as err:
            print((out.read() + err.read()).decode())
        print(stopped.reason, stopped.exit_code)
    finally:
        await launcher.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["python", "-c", "print('hello from a container')"]))
