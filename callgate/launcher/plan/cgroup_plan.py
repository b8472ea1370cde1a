"""A run's control group as data: which files get which values, in v2's words and in v1's.

Pure: a plan can be printed before anything is done. Swap is none at all: a limit on memory
that leaves swap alone only makes the host slow. v2's `memory.high` is for a soft limit alone,
because it throttles: below a hard one the time to an out-of-memory grew tenfold.

v1 is an adapter for memory, cpu and pids, each in a hierarchy of its own. It has no
`oom.group`: the kernel kills one process of the group, and the launcher, when it sees the
counter, ends the rest. Memory and swap together are capped like memory alone there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from callgate.model import ResourceLimits

Version = Literal["v1", "v2"]

CONTROLLERS: Final = ("memory", "cpu", "pids")
IO: Final = "io"
"""Of v2; v1's `blkio` goes by this name, too. Few have it, and few ask for it."""
V1_SIDE_HIERARCHIES: Final = {"cpu": ("cpuacct",)}
"""Joined with a controller: v1 counts a group's processor time in another one."""

_PERIOD_US = 100_000
_LONG_PERIOD_US = 1_000_000
_LEAST_QUOTA_US = 1_000
"""The kernel's: less time than this in a period is refused."""


class Setting(msgspec.Struct, frozen=True, gc=False):
    """One file of a cgroup and its value."""

    version: Version
    controller: str
    file: str
    value: str
    needed: bool = True
    """Else it may be missing: a kernel without swap has no file for it."""
    rounded: bool = False
    """The kernel keeps whole pages, rounded down."""
    listed: bool = False
    """The kernel keeps a line for each device; the value is one of them."""


class CgroupPlan(msgspec.Struct, frozen=True):
    """A run's group: where it is made and what is set there."""

    v2: bool
    """Whether there is a v2 group, with or without controllers: it can be killed at once."""
    v1: tuple[str, ...] = ()
    """Hierarchies of v1 that it is in."""
    settings: tuple[Setting, ...] = ()
    parent: str | None = None
    """The v2 group that the policy names; None for the one that the survey found."""


class Counters(msgspec.Struct, frozen=True, gc=False):
    """What the kernel counted in a group; the numbers only grow."""

    oom_kills: int = 0
    forks_refused: int = 0
    throttled: int = 0
    cpu_ns: int = 0
    peak_bytes: int = 0


def settings(
    version: Version,
    controller: str,
    limits: ResourceLimits,
    extra_pids: int = 0,
    disks: tuple[str, ...] = (),
) -> tuple[Setting, ...]:
    """Return what is written for one controller, in this order; nothing without a limit."""
    match controller:
        case "memory":
            return _memory(version, limits)
        case "cpu" if limits.cpu_millicores is not None:
            quota_us, period_us = cpu_quota(limits.cpu_millicores)
            if version == "v2":
                return (Setting("v2", "cpu", "cpu.max", f"{quota_us} {period_us}"),)
            return (
                Setting("v1", "cpu", "cpu.cfs_period_us", str(period_us)),
                Setting("v1", "cpu", "cpu.cfs_quota_us", str(quota_us)),
            )
        case "pids" if limits.pids is not None:
            return (Setting(version, "pids", "pids.max", str(limits.pids + extra_pids)),)
        case "io":
            return tuple(each for disk in disks for each in _io(version, disk, limits))
        case _:
            return ()


def _io(version: Version, disk: str, limits: ResourceLimits) -> tuple[Setting, ...]:
    """Return the throughput that one disk (`MAJOR:MINOR`) gives to a group."""
    asked = (
        ("rbps", "blkio.throttle.read_bps_device", limits.io_read_bytes_per_s),
        ("wbps", "blkio.throttle.write_bps_device", limits.io_write_bytes_per_s),
    )
    if version == "v1":
        return tuple(
            Setting("v1", IO, file, f"{disk} {value}", listed=True)
            for _, file, value in asked
            if value is not None
        )
    words = " ".join(f"{word}={value}" for word, _, value in asked if value is not None)
    return (Setting("v2", IO, "io.max", f"{disk} {words}", listed=True),) if words else ()


def _memory(version: Version, limits: ResourceLimits) -> tuple[Setting, ...]:
    size, high = limits.memory_bytes, limits.memory_high_bytes
    soft = (Setting("v2", "memory", "memory.high", str(high), rounded=True),)
    found = () if high is None or version == "v1" else soft
    return found if size is None else found + _hard_memory(version, str(size))


def _hard_memory(version: Version, size: str) -> tuple[Setting, ...]:
    if version == "v2":
        return (
            Setting("v2", "memory", "memory.max", size, rounded=True),
            Setting("v2", "memory", "memory.swap.max", "0", needed=False),
            Setting("v2", "memory", "memory.oom.group", "1"),
        )
    swap = "memory.memsw.limit_in_bytes"
    return (
        Setting("v1", "memory", "memory.limit_in_bytes", size, rounded=True),
        Setting("v1", "memory", swap, size, rounded=True, needed=False),
    )


def cpu_quota(millicores: int) -> tuple[int, int]:
    """Return (quota, period) in microseconds: so much processor time in each period."""
    quota_us = millicores * _PERIOD_US // 1000
    if quota_us >= _LEAST_QUOTA_US:
        return quota_us, _PERIOD_US
    return max(_LEAST_QUOTA_US, millicores * _LONG_PERIOD_US // 1000), _LONG_PERIOD_US
