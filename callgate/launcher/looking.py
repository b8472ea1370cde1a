"""How a run of the built-in launcher is looked at: which files, which processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from callgate.launcher import bwrap, samplers
from callgate.launcher.monitor import Bounds
from callgate.launcher.watch import Watch
from callgate.model import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.errors import LimitInfo
    from callgate.launcher.cgroup import Group
    from callgate.launcher.life import LocalRun
    from callgate.launcher.plan import LaunchPlan


def watch_for(
    run: LocalRun, plan: LaunchPlan, on_warning: Callable[[LimitInfo], object] | None
) -> Watch:
    """A watch with everything that can be seen of the run."""
    holdings = run.holdings
    group = None if holdings is None else holdings.group
    limits = run.spec.limits
    extra_pids = 0 if plan.sandbox is None else bwrap.EXTRA_PIDS
    sampler = samplers.Sampler(
        _processes(run, extra_pids),
        group=None if group is None else lambda: read_group(group),
        disk=_disk(run, plan),
        exact_from_bytes=None if "memory" in plan.kernel else limits.memory_bytes,
        extra_pids=extra_pids,
    )
    bounds = Bounds(f"agent:{run.spec.agent}", limits, run.spec.shadow, plan.kernel)
    return Watch(sampler.look, bounds, on_warning=on_warning)


def read_group(group: Group) -> Usage:
    """What all hierarchies of a group know together."""
    usage = Usage() if group.v2 is None else samplers.read_v2(group.v2)
    older = samplers.read_v1(
        samplers.CgroupV1(group.v1.get("memory"), group.v1.get("pids"), group.v1.get("cpuacct"))
    )
    known = {
        name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None
    }
    return msgspec.structs.replace(older, **known)


def _processes(run: LocalRun, skipped: int) -> Callable[[], list[int]]:
    holdings = run.holdings
    warden = None if holdings is None else holdings.warden.pid
    # Parents come first: what is skipped is bwrap and the namespace's first process.
    return lambda: [] if warden is None else samplers.descendants(warden)[skipped:]


def _disk(run: LocalRun, plan: LaunchPlan) -> Callable[[], tuple[int, int] | None] | None:
    holdings = run.holdings
    directory = None if holdings is None else holdings.directory
    if plan.workspace is None or directory is None:
        return None
    if not plan.workspace.tmpfs:
        return samplers.Workspace(directory.workspace).look

    def mounted() -> tuple[int, int] | None:
        fd = run.workspace_fd
        return None if fd is None else samplers.filesystem_use(fd)

    return mounted
