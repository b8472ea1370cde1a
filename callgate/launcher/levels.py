"""Whether each level can be had here: a command is launched at it, and looks around.

IO. This is the launcher itself with all its layers, so what holds here holds for agents.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, get_args

from callgate.launcher.entry import find_launcher
from callgate.launcher.plan import NOT_ASKED
from callgate.launcher.probe_acts import PROBE_TIMEOUT_S, Finding
from callgate.launcher.protocol import LaunchRefused, gaps_text
from callgate.model import EnvSpec, LaunchSpec, Level, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from callgate.launcher.protocol import Effect, Launcher

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
        return Finding(feature, "absent", gaps_text(refused.gaps), "see the features above")
    for fd in {run.stdin, run.stdout, run.stderr}:
        os.close(fd)
    stopped = await run.wait()
    if stopped.exit_code != 0:
        return Finding(feature, "absent", f"a command ended with {stopped.reason}", "")
    return Finding(feature, "enforced", _weaker(run.effective))


def _weaker(effective: Mapping[str, Effect]) -> str:
    """What a level is had without, since it only comes with `containment` and nobody wrote it."""
    found = {"degraded": "watched only", "absent": "not held"}
    asked = {name: each for name, each in effective.items() if each.reason != NOT_ASKED}
    parts = [
        f"{words}: {', '.join(names)}"
        for status, words in found.items()
        if (names := [name for name, effect in asked.items() if effect.status == status])
    ]
    return "; ".join(parts)
