"""The same limits in the words of cgroup v1, for memory, cpu and pids.

Pure. Each controller has a hierarchy of its own. There is no `oom.group`: the kernel kills
one process of the group, and the launcher, when it sees the counter, ends the rest. Memory
and swap together are capped like memory alone, which leaves no swap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from callgate.launcher.settings import Setting, cpu_quota

if TYPE_CHECKING:
    from callgate.model import ResourceLimits

SIDE_HIERARCHIES: Final = {"cpu": ("cpuacct",)}
"""Joined with a controller: v1 counts a group's processor time in another one."""


def settings(controller: str, limits: ResourceLimits, extra_pids: int) -> tuple[Setting, ...]:
    """What is written for one controller, in this order."""
    match controller:
        case "memory" if limits.memory_bytes is not None:
            size = str(limits.memory_bytes)
            return (
                Setting("v1", "memory", "memory.limit_in_bytes", size, rounded=True),
                Setting(
                    "v1", "memory", "memory.memsw.limit_in_bytes", size, rounded=True, needed=False
                ),
            )
        case "cpu" if limits.cpu_millicores is not None:
            quota_us, period_us = cpu_quota(limits.cpu_millicores)
            return (
                Setting("v1", "cpu", "cpu.cfs_period_us", str(period_us)),
                Setting("v1", "cpu", "cpu.cfs_quota_us", str(quota_us)),
            )
        case "pids" if limits.pids is not None:
            return (Setting("v1", "pids", "pids.max", str(limits.pids + extra_pids)),)
        case _:
            return ()


OOM_FILE: Final = "memory.oom_control"
PIDS_FILE: Final = "pids.events"
CPU_FILE: Final = "cpuacct.usage"
THROTTLE_FILE: Final = "cpu.stat"
PEAK_FILE: Final = "memory.max_usage_in_bytes"
