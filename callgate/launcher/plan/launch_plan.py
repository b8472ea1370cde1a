"""What a launch will do, decided and written down before anything is done.

Pure: a spec, a host and a command go in; a plan comes out, or a refusal with every gap.
`callgate explain` prints it, the launcher applies it, and its `effective` is the promise
that both make: each feature is `enforced`, `degraded` or `absent`, with the reason.

A gap is a feature that was asked for and cannot be had:
- one that belongs to the level and is not fully there;
- a limit that somebody wrote and that nothing holds;
- at level `strict`, also a limit that is only watched. Elsewhere a look once a second that
  ends the run is a weaker, but real, enforcement: it is reported and does not refuse.
Limits that nobody wrote, which come with `containment`, are reported and never refuse.
`allow_degraded` turns a refusal into a plan that carries its gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from callgate.launcher.plan import bwrap, cgroup_plan, effects, environment
from callgate.launcher.plan.bwrap import Sandbox  # msgspec reads it
from callgate.launcher.plan.capabilities import DROP_ID
from callgate.launcher.plan.cgroup_plan import CgroupPlan, Setting
from callgate.launcher.protocol import Effect
from callgate.model import Level

if TYPE_CHECKING:
    from callgate.launcher.plan.capabilities import Command, Host
    from callgate.model import LaunchSpec, ResourceLimits

_LONGEST_FILE = "RLIMIT_FSIZE"
"""A floor under a directory that is only watched: between two looks no one file outgrows it."""
_LATE = ("RLIMIT_AS", _LONGEST_FILE)
"""Set in the sandbox: bwrap and our last step need more than the agent may have."""
_SECOND_NS = 1_000_000_000
PROCESSES = "RLIMIT_NPROC"
"""Counts all processes of a user: whoever sets it adds those that there are."""
NICE = 10
"""Half of the way to the lowest priority: what a share of processors is where nothing holds one."""


class WorkspacePlan(msgspec.Struct, frozen=True, gc=False):
    """A directory for the agent; as a tmpfs the kernel holds its limits."""

    tmpfs: bool
    size_bytes: int | None = None
    files: int | None = None


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Which user the agent becomes: one of `uids` that no other run has, or one for all."""

    uids: tuple[int, int]
    """The first, and how many."""
    gid: int = DROP_ID
    """The kernel counts nothing by group: one for all, so that a file can be meant for agents."""
    shared: bool = False


class LaunchPlan(msgspec.Struct, frozen=True):
    """Everything that a launch will do, in the order in which it is done."""

    agent: str
    level: Level
    argv: tuple[str, ...]
    effective: dict[str, Effect]
    gaps: dict[str, str]
    """Not empty only if the policy allows them."""
    kernel: frozenset[str]
    """Limits that the kernel holds, which the monitor then need not."""
    workspace: WorkspacePlan | None
    cgroup: CgroupPlan | None
    rlimits: tuple[tuple[str, int], ...]
    late_rlimits: tuple[tuple[str, int], ...]
    """Of `_LATE`."""
    drop: Drop | None
    no_new_privs: bool
    sandbox: Sandbox | None
    nice: int
    """Added to the priority's number."""
    environment: tuple[str, ...] | None
    """Names that pass if they are set; None for everything."""

    def limits(self, asked: ResourceLimits) -> ResourceLimits:
        """Return the limits that hold: a workspace may be smaller than its default."""
        held = None if self.workspace is None else self.workspace.size_bytes
        return asked if held is None else msgspec.structs.replace(asked, disk_bytes=held)

    def in_workspace_of(self, paused: LaunchPlan) -> LaunchPlan:
        """Return the plan with the size that a paused run's workspace has, if nobody wrote one.

        More memory would make its default larger, and a workspace that is there must be kept.
        """
        if not (_is_lowered(self) and _is_lowered(paused)):
            return self
        effective = self.effective | {"disk": paused.effective["disk"]}
        return msgspec.structs.replace(self, workspace=paused.workspace, effective=effective)


class Refusal(msgspec.Struct, frozen=True):
    """Nothing was done: what is missing, feature → reason."""

    gaps: dict[str, str]
    effective: dict[str, Effect]


def plan(spec: LaunchSpec, host: Host, command: Command) -> LaunchPlan | Refusal:
    """Return what would be done for the spec on this host, or every gap."""
    sandboxed = spec.level != "privileged" and host.bwrap.present
    cgroup = _cgroup(spec, host, sandboxed=sandboxed)
    workspace = _workspace(spec, host, cgroup)
    effective = effects.decide(spec, host, cgroup, workspace)
    drop = _drop(spec, host)
    if drop is not None:
        hidden = not (sandboxed or command.open)
        effective["uid_drop"] = _uid_drop(drop, hidden=hidden)
    gaps = effects.gaps(spec, effective)
    if gaps and not spec.allow_degraded:
        return Refusal(gaps, effective)
    sandbox = None
    if sandboxed:
        sandbox = bwrap.sandbox(spec, host, command, seccomp=host.seccomp.present)
    doubt = bwrap.find_doubt(spec, host, command, sandbox)
    if doubt is not None:  # nobody can allow this: it is a hole, not a lack
        return Refusal({"command": doubt}, effective)
    rlimits = _rlimits(spec, host, workspace)
    late = tuple(limit for limit in rlimits if sandboxed and limit[0] in _LATE)
    watched = ("memory", "pids", "disk", "files", "connections")
    held = frozenset(kind for kind in watched if effective[kind].status == "enforced")
    return LaunchPlan(
        agent=spec.agent,
        level=spec.level,
        argv=(command.path, *spec.command[1:]),
        effective=effective,
        gaps=gaps,
        kernel=held,
        workspace=workspace,
        cgroup=cgroup,
        rlimits=tuple(limit for limit in rlimits if limit not in late),
        late_rlimits=late,
        drop=drop if effective["uid_drop"].status == "enforced" else None,
        no_new_privs=spec.contained and host.platform == "linux",
        sandbox=sandbox,
        nice=NICE if effective["cpu"].reason == effects.NICED else 0,
        environment=environment.names(spec),
    )


def _is_lowered(plan: LaunchPlan) -> bool:
    """Return whether a tmpfs is smaller than the `disk` that nobody wrote."""
    held = plan.workspace is not None and plan.workspace.tmpfs
    return held and plan.effective["disk"].reason.endswith(effects.HALF)


def _drop(spec: LaunchSpec, host: Host) -> Drop | None:
    """Return the users to choose from; with mounts that it may write it is the same each time.

    Else nobody could change, in the next run, what was written in the last one.
    """
    if host.uid != 0 or spec.level == "privileged":
        return None
    writes = spec.level != "strict" and any(not mount.read_only for mount in spec.mounts)
    if writes:
        return Drop((DROP_ID, 1), shared=True)
    return Drop(host.uids or (0, 0))


def _uid_drop(drop: Drop, *, hidden: bool) -> Effect:
    if hidden:
        return Effect("absent", "without a sandbox no other user can reach it")
    if drop.uids[1] == 0:
        return Effect("absent", "this user namespace has no uids for runs (/proc/self/uid_map)")
    shared = "as nobody, like all that write to mounts: the kernel counts for them together"
    return Effect("enforced", shared if drop.shared else "")


def _cgroup(spec: LaunchSpec, host: Host, *, sandboxed: bool) -> CgroupPlan | None:
    """A group for whoever is contained: limits go there, and it can be killed at once."""
    if not spec.contained:
        return None
    groups = host.cgroups
    extra = bwrap.EXTRA_PIDS if sandboxed else 0
    settings: list[Setting] = []
    hierarchies: list[str] = []
    for controller in (*cgroup_plan.CONTROLLERS, cgroup_plan.IO):
        holder = groups.holder(controller)
        if holder is None:
            continue
        more = cgroup_plan.settings(holder, controller, spec.limits, extra, groups.disks)
        settings += more
        if more and holder == "v1":
            side = cgroup_plan.V1_SIDE_HIERARCHIES.get(controller, ())
            hierarchies += [controller, *(each for each in side if each in groups.v1)]
    if groups.v2 is None and "freezer" in groups.v1:
        hierarchies.append("freezer")
    if groups.v2 is None and not hierarchies:
        return None
    parent = None if spec.cgroup_parent is None else groups.v2
    return CgroupPlan(groups.v2 is not None, tuple(hierarchies), tuple(settings), parent)


def _workspace(spec: LaunchSpec, host: Host, cgroup: CgroupPlan | None) -> WorkspacePlan | None:
    """Return a tmpfs wherever its files fit into the memory, else a directory that is watched.

    Files in a tmpfs count as the agent's memory: they may take half of it, not all. A `disk` that
    nobody wrote is lowered to that half if a group holds the memory; one that was written is not.
    """
    limits = spec.limits
    if not host.workspaces:
        return None
    bounded = limits.disk_bytes is not None or limits.files is not None
    if spec.level == "privileged":
        directory = WorkspacePlan(False, limits.disk_bytes, limits.files)
        return directory if spec.contained and bounded else None
    memory, disk = limits.memory_bytes, limits.disk_bytes
    fits = memory is None or (disk is not None and disk <= memory // 2)
    if not fits and memory is not None and "disk" in spec.assumed and _holds_memory(cgroup):
        disk, fits = memory // 2, True
    tmpfs = bounded and host.tmpfs.present and (spec.level == "strict" or fits)
    return WorkspacePlan(tmpfs, disk if tmpfs else limits.disk_bytes, limits.files)


def _holds_memory(cgroup: CgroupPlan | None) -> bool:
    return cgroup is not None and any(each.controller == "memory" for each in cgroup.settings)


def _rlimits(
    spec: LaunchSpec, host: Host, workspace: WorkspacePlan | None
) -> tuple[tuple[str, int], ...]:
    found = []
    for name, member in effects.RLIMITS.values():
        value: int | None = getattr(spec.limits, member)
        if value is not None and name in host.rlimits:
            # The kernel counts processor time in whole seconds; none would be no limit at all.
            found.append((name, max(1, -(-value // _SECOND_NS)) if name == "RLIMIT_CPU" else value))
    if host.platform != "linux":
        found += _instead_of_a_group(spec, host, [name for name, _ in found])
    counted = not host.workspaces if workspace is None else not workspace.tmpfs
    watched = counted and _LONGEST_FILE in host.rlimits
    # At level privileged it is about all files of the host, which only who wrote `disk` can mean.
    meant = spec.level != "privileged" or "disk" not in spec.assumed
    if watched and meant and spec.limits.disk_bytes is not None:
        found.append((_LONGEST_FILE, spec.limits.disk_bytes))
    return tuple(found)


def _instead_of_a_group(spec: LaunchSpec, host: Host, known: list[str]) -> list[tuple[str, int]]:
    """Return rlimits that stand below a look once a second, where no system has a group.

    Of one process each. Address space is more than memory, so nobody gets it for a default.
    """
    memory, pids = spec.limits.memory_bytes, spec.limits.pids
    written = memory is not None and "memory" not in spec.assumed
    found = [("RLIMIT_AS", memory)] if written else []
    found += [] if pids is None else [(PROCESSES, pids)]
    usable = [name for name in host.rlimits if name not in known]
    return [(name, value) for name, value in found if value is not None and name in usable]
