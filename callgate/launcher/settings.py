"""What is written into a cgroup, as data: a plan can be printed before anything is done.

Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Version = Literal["v1", "v2"]

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


class CgroupPlan(msgspec.Struct, frozen=True):
    """A run's group: where it is made and what is set there."""

    v2: bool
    """Whether there is a v2 group, with or without controllers: it can be killed at once."""
    v1: tuple[str, ...] = ()
    """Hierarchies of v1 that it is in."""
    settings: tuple[Setting, ...] = ()


def cpu_quota(millicores: int) -> tuple[int, int]:
    """Microseconds of processor time in each period of so many."""
    quota_us = millicores * _PERIOD_US // 1000
    if quota_us >= _LEAST_QUOTA_US:
        return quota_us, _PERIOD_US
    return max(_LEAST_QUOTA_US, millicores * _LONG_PERIOD_US // 1000), _LONG_PERIOD_US
