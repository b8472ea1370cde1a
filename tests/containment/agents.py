"""Small agents: a piece of Python that runs contained, and what it said and how it ended."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from callgate.model import EnvSpec, LaunchSpec, Level, MountSpec, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from callgate.launcher import LocalLauncher, Run, Stopped

MIB = 1024 * 1024
PATIENCE_S = 90.0
"""Nothing waits so long where it works: a walk over /usr took 30 s on an emulated kernel beside
other work."""
"""For things that take milliseconds, on a machine that does other things as well."""

_ids = count()


@dataclass(frozen=True)
class Said:
    """How an agent ended and what it printed."""

    stopped: Stopped
    out: str
    err: str


def spec(
    code: str,
    *,
    level: Level = "privileged",
    contained: bool = True,
    limits: Mapping[str, Any] | None = None,
    mounts: tuple[MountSpec, ...] = (),
    env: EnvSpec | None = None,
    **more: Any,
) -> LaunchSpec:
    """An agent that runs a piece of Python."""
    return LaunchSpec(
        "agent",
        (sys.executable, "-I", "-S", "-c", code),
        level=level,
        contained=contained,
        limits=ResourceLimits(**(limits or {})),
        mounts=mounts,
        env=env or EnvSpec(pass_all=not contained),
        **more,
    )


def next_id() -> str:
    return f"run-{os.getpid()}-{next(_ids)}"


async def read_all(fd: int) -> str:
    """Everything until the other end is closed; closes ours."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    try:
        with suppress(OSError):  # a PTY ends with EIO
            return (await reader.read()).decode()
        return ""
    finally:
        transport.close()


async def read_line(fd: int) -> str:
    """One line; keeps the descriptor open."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    while not data.endswith(b"\n"):
        ready = loop.create_future()
        loop.add_reader(fd, ready.set_result, None)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ready
        finally:
            loop.remove_reader(fd)
        piece = os.read(fd, 1)
        if not piece:
            break
        data += piece
    return data.decode()


def close(run: Run) -> None:
    """Close this side's ends."""
    for fd in {run.stdin, run.stdout, run.stderr, run.channel} - {None}:
        with suppress(OSError):
            os.close(fd)  # type: ignore[arg-type]


async def run(launcher: LocalLauncher, agent: LaunchSpec) -> Said:
    """Let it run to its end."""
    started = await launcher.launch(agent, run_id=next_id())
    os.close(started.stdin)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await asyncio.gather(read_all(started.stdout), read_all(started.stderr))
        return Said(await started.wait(), out, err)


async def eventually(holds: Callable[[], bool]) -> None:
    """Until it holds: for what the kernel does in its own time, without telling anybody."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)


def exists(pid: int) -> bool:
    """Whether there is such a process, a zombie included."""
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110  # also called from coroutines
