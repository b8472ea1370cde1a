"""Is a run within its limits? Checked from what was measured, once a sample.

Pure. A warning is given once when a usage reaches 90 % of its limit, and again only after
it was below 80 %: a usage that trembles at the mark is one warning. Above the limit the run
must end, unless the kernel holds that limit itself. A share of processors is no such limit:
a busy process is slowed by the kernel or not at all, and never ended for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from callgate.errors import LimitInfo
from callgate.model import ResourceLimits, Usage

if TYPE_CHECKING:
    from collections.abc import Collection

WARN_PERCENT: Final = 90
REARM_PERCENT: Final = 80
"""Far enough below the warning that one garbage collection does not cause the next."""

WATCHED: Final = {
    "memory": "memory_bytes",
    "pids": "pids",
    "disk": "disk_bytes",
    "files": "files",
    "connections": "connections",
}
"""The type in a `LimitInfo` → the member of `Usage` and `ResourceLimits` of the same name."""


class Sample(msgspec.Struct, frozen=True):
    """One measurement of a run. `uncounted`: what could not be counted in time, by type."""

    usage: Usage
    uncounted: frozenset[str] = frozenset()


class Checked(msgspec.Struct, frozen=True):
    """The result of one check; `near` is for the next one."""

    near: frozenset[str]
    warnings: tuple[LimitInfo, ...] = ()
    """A usage came near its limit, or would have reached one in shadow mode."""
    end: LimitInfo | None = None
    """The limit for which the run must end."""


class Bounds(msgspec.Struct, frozen=True):
    """What a run is held to, and which of it the kernel holds without us."""

    scope: str
    limits: ResourceLimits
    shadow: ResourceLimits
    kernel: frozenset[str] = frozenset()


def check_usage(near: Collection[str], sample: Sample, bounds: Bounds) -> Checked:
    """Compare a sample with the bounds; `near` is what the last check left."""
    still_near: set[str] = set()
    warnings: list[LimitInfo] = []
    end: LimitInfo | None = None
    for kind, member in WATCHED.items():
        usage: int | None = getattr(sample.usage, member)
        limit: int | None = getattr(bounds.limits, member)
        if limit is not None:
            info = LimitInfo(kind, bounds.scope, limit, usage)
            if kind not in bounds.kernel and _exceeded(kind, usage, limit, sample):
                end = end or info
            elif _near(kind, usage, limit, WARN_PERCENT, near):
                still_near.add(kind)
                if kind not in near:
                    warnings.append(info)
        limit = getattr(bounds.shadow, member)
        shadow = f"shadow {kind}"
        if limit is not None and _near(shadow, usage, limit, 100, near):
            still_near.add(shadow)
            if shadow not in near:
                warnings.append(LimitInfo(kind, bounds.scope, limit, usage))
    return Checked(frozenset(still_near), tuple(warnings), end)


def _exceeded(kind: str, usage: int | None, limit: int, sample: Sample) -> bool:
    return kind in sample.uncounted or (usage is not None and usage > limit)


def _near(kind: str, usage: int | None, limit: int, percent: int, near: Collection[str]) -> bool:
    """Return whether a usage counts as near: above the mark, or not yet far below it again."""
    if usage is None:
        return kind in near
    mark = REARM_PERCENT if kind in near else percent
    return usage * 100 >= limit * mark
