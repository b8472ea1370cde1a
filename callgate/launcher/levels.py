"""Whether each level can be had here: a command is launched at it, and looks around.

IO. This is the launcher itself with all its layers, so what holds here holds for agents.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, get_args

from callgate.launcher.entry import find_launcher
from callgate.launcher.probe_acts import PROBE_TIMEOUT_S, Finding
from callgate.launcher.protocol import LaunchRefused
from callgate.model import EnvSpec, LaunchSpec, Level, ResourceLimits

if TYPE_CHECKING:
    from callgate.launcher.protocol import Launcher

LIMITS: Final = ResourceLimits(
    memory_bytes=64 * 1024 * 1024,
    cpu_millicores=1000,
    pids=16,
    disk_bytes=16 * 1024 * 1024,
    wall_time_ns=int(PROBE_TIMEOUT_S * 1e9),
)
COMMAND: Final = ("/bin/sh", "-c", "exit 0")


async def try_levels() -> list[Finding]:
    """One finding a level, from the widest to the narrowest."""
    launcher = find_launcher()
    try:
        levels: tuple[Level, ...] = get_args(Level)
        return [await _try(launcher, level) for level in reversed(levels)]
    finally:
        await launcher.aclose()


async def _try(launcher: Launcher, level: Level) -> Finding:
    feature = f"level {level}"
    spec = LaunchSpec(
        "doctor",
        COMMAND,
        level=level,
        contained=True,
        limits=LIMITS,
        assumed=("memory", "cpu", "pids", "disk"),
        env=EnvSpec(pass_all=False),
    )
    try:
        run = await launcher.launch(spec, run_id=f"doctor-{level}-{os.getpid()}")
    except LaunchRefused as refused:
        why = "; ".join(f"{name}: {reason}" for name, reason in refused.gaps.items())
        return Finding(feature, "absent", why, "see the features above")
    for fd in {run.stdin, run.stdout, run.stderr}:
        os.close(fd)
    stopped = await run.wait()
    if stopped.exit_code != 0:
        return Finding(feature, "absent", f"a command ended with {stopped.reason}", "")
    weaker = [name for name, effect in run.effective.items() if effect.status == "degraded"]
    return Finding(feature, "enforced", f"watched only: {', '.join(weaker)}" if weaker else "")
