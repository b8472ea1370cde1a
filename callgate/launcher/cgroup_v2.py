"""Limits in the words of cgroup v2: which files, which values, which counters.

Pure. Swap is none at all: a limit on memory that leaves swap alone only makes the host slow.
`memory.high` is not used, because it throttles: time to an out-of-memory grew tenfold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.launcher.settings import Setting, cpu_quota

if TYPE_CHECKING:
    from callgate.model import ResourceLimits

CONTROLLERS: Final = ("memory", "cpu", "pids")


def settings(controller: str, limits: ResourceLimits, extra_pids: int) -> tuple[Setting, ...]:
    """What is written for one controller."""
    match controller:
        case "memory" if limits.memory_bytes is not None:
            return (
                Setting("v2", "memory", "memory.max", str(limits.memory_bytes), rounded=True),
                Setting("v2", "memory", "memory.swap.max", "0", needed=False),
                Setting("v2", "memory", "memory.oom.group", "1"),
            )
        case "cpu" if limits.cpu_millicores is not None:
            quota_us, period_us = cpu_quota(limits.cpu_millicores)
            return (Setting("v2", "cpu", "cpu.max", f"{quota_us} {period_us}"),)
        case "pids" if limits.pids is not None:
            return (Setting("v2", "pids", "pids.max", str(limits.pids + extra_pids)),)
        case _:
            return ()


OOM_FILE: Final = "memory.events"
PIDS_FILE: Final = "pids.events"
CPU_FILE: Final = "cpu.stat"
PEAK_FILE: Final = "memory.peak"
"""From Linux 5.19 on."""
