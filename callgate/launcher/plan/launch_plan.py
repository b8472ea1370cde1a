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

from callgate.launcher.limit_message import size
from callgate.launcher.plan import bwrap, cgroup_plan, environment
from callgate.launcher.plan.bwrap import Sandbox  # msgspec reads it
from callgate.launcher.plan.capabilities import DROP_ID
from callgate.launcher.plan.cgroup_plan import CgroupPlan, Setting
from callgate.launcher.protocol import Effect
from callgate.model import Level

if TYPE_CHECKING:
    from callgate.launcher.plan.capabilities import Capability, Command, Host
    from callgate.model import LaunchSpec, ResourceLimits

NOT_ASKED = "not asked for"
_ENFORCED = Effect("enforced")
_NOT_ASKED = Effect("absent", NOT_ASKED)
_NO_WAY = Effect("absent", "this launcher has no way to do it")
_NO_HIGH = Effect("absent", "no v2 cgroup with a memory controller; above it there is a warning")

RLIMITS = {
    "open_files": ("RLIMIT_NOFILE", "open_files"),
    "cpu_time": ("RLIMIT_CPU", "cpu_time_ns"),
    "address_space": ("RLIMIT_AS", "address_space_bytes"),
    "core_size": ("RLIMIT_CORE", "core_bytes"),
}
_NEVER_A_GAP = ("tree_kill", "memory_high")
"""A soft limit is a wish: without it there still is the warning of the shadow beside it."""
_LONGEST_FILE = "RLIMIT_FSIZE"
"""A floor under a directory that is only watched: between two looks no one file outgrows it."""
_LATE = ("RLIMIT_AS", _LONGEST_FILE)
"""Set in the sandbox: bwrap and our last step need more than the agent may have."""
_LEVEL_FEATURES = ("namespaces", "network", "filesystem", "seccomp", "landlock", "uid_drop")
_INSTEAD = {
    "unix": "no Unix sockets but connected pairs",
    "listen": "no listening (a port can still be taken)",
}
"""What an older landlock's lack costs at level `network`, by what the filter refuses."""
OPEN_FILES = 1024
"""In a sandbox, unless somebody wrote another number: what every Linux gives a program at first,
so that those which want more have been told so. Without it a program that raises its own could
have the host's, which is hundreds of thousands."""
_SECOND_NS = 1_000_000_000
_HALF = "half of its memory"
_LATE_SOCKETS = (
    "a socket that the host makes below a mount after the launch can be connected to: "
    f"only landlock {bwrap.SOCKETS_ABI} (Linux 7.1) refuses that"
)


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
    effective = _effects(spec, host, cgroup, workspace)
    drop = _drop(spec, host)
    if drop is not None:
        hidden = not (sandboxed or command.open)
        effective["uid_drop"] = _uid_drop(drop, hidden=hidden)
    gaps = _gaps(spec, effective)
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
        environment=environment.names(spec),
    )


def _is_lowered(plan: LaunchPlan) -> bool:
    """Return whether a tmpfs is smaller than the `disk` that nobody wrote."""
    held = plan.workspace is not None and plan.workspace.tmpfs
    return held and plan.effective["disk"].reason.endswith(_HALF)


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
    return CgroupPlan(groups.v2 is not None, tuple(hierarchies), tuple(settings))


def _workspace(spec: LaunchSpec, host: Host, cgroup: CgroupPlan | None) -> WorkspacePlan | None:
    """Return a tmpfs wherever its files fit into the memory, else a directory that is watched.

    Files in a tmpfs count as the agent's memory: they may take half of it, not all. A `disk` that
    nobody wrote is lowered to that half if a group holds the memory; one that was written is not.
    """
    limits = spec.limits
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
    for name, member in RLIMITS.values():
        value: int | None = getattr(spec.limits, member)
        if value is not None and name in host.rlimits:
            # The kernel counts processor time in whole seconds; none would be no limit at all.
            found.append((name, max(1, -(-value // _SECOND_NS)) if name == "RLIMIT_CPU" else value))
    watched = workspace is not None and not workspace.tmpfs and _LONGEST_FILE in host.rlimits
    # At level privileged it is about all files of the host, which only who wrote `disk` can mean.
    meant = spec.level != "privileged" or "disk" not in spec.assumed
    if watched and meant and spec.limits.disk_bytes is not None:
        found.append((_LONGEST_FILE, spec.limits.disk_bytes))
    return tuple(found)


def _effects(
    spec: LaunchSpec, host: Host, cgroup: CgroupPlan | None, workspace: WorkspacePlan | None
) -> dict[str, Effect]:
    effects = {"tree_kill": _tree_kill(host)}
    effects |= _level_effects(spec, host)
    limits = spec.limits
    controlled = {each.controller for each in cgroup.settings} if cgroup is not None else set()
    watched = Effect("degraded", _watched(spec))
    for kind, value in (("memory", limits.memory_bytes), ("pids", limits.pids)):
        held = _ENFORCED if kind in controlled else watched
        effects[kind] = _NOT_ASKED if value is None else held
    effects["cpu"] = _NOT_ASKED
    if limits.cpu_millicores is not None:
        absent = Effect("absent", host.cgroups.reason or "no cgroup with a cpu controller")
        effects["cpu"] = _ENFORCED if "cpu" in controlled else absent
    for kind, value in (("disk", limits.disk_bytes), ("files", limits.files)):
        held = _workspace_effect(kind, spec, host, workspace)
        effects[kind] = _NOT_ASKED if value is None else held
    # A network namespace has a loopback of its own: what refuses sockets is the filter.
    refused = spec.level == "strict" and effects["seccomp"].status == "enforced"
    held = Effect("enforced", "no internet sockets at all") if refused else watched
    effects["connections"] = _NOT_ASKED if limits.connections is None else held
    for kind, (name, member) in RLIMITS.items():
        absent = Effect("absent", f"{host.platform} has no {name}")
        held = _ENFORCED if name in host.rlimits else absent
        effects[kind] = _NOT_ASKED if getattr(limits, member) is None else held
    slowed = cgroup is not None and any(each.file == "memory.high" for each in cgroup.settings)
    high = _ENFORCED if slowed else _NO_HIGH
    effects["memory_high"] = _NOT_ASKED if limits.memory_high_bytes is None else high
    asked = {
        "exec": spec.programs,
        "cgroup_parent": spec.cgroup_parent,
    }
    for kind, written in asked.items():
        effects[kind] = _NOT_ASKED if written is None else _NO_WAY
    throughput = _throughput(host, cgroup)
    for kind, rate in (
        ("io_read", limits.io_read_bytes_per_s),
        ("io_write", limits.io_write_bytes_per_s),
    ):
        effects[kind] = _NOT_ASKED if rate is None else throughput[kind]
    if limits.open_files is None and spec.level != "privileged" and host.bwrap.present:
        effects["open_files"] = Effect("enforced", f"{OPEN_FILES:,}, which nobody wrote")
    effects["wall_time"] = _NOT_ASKED if limits.wall_time_ns is None else _ENFORCED
    effects["environment"] = _NOT_ASKED if spec.env.pass_all else _ENFORCED
    return effects


def _throughput(host: Host, cgroup: CgroupPlan | None) -> dict[str, Effect]:
    """Return what holds the bytes that go from and to disks."""
    files = {each.file for each in cgroup.settings} if cgroup is not None else set()
    if "io.max" in files:
        return dict.fromkeys(("io_read", "io_write"), Effect("enforced", "on each disk"))
    if any(each.startswith("blkio.") for each in files):
        late = "on each disk, but not what the kernel writes later from its cache (cgroup v1)"
        return {"io_read": Effect("enforced", "on each disk"), "io_write": Effect("degraded", late)}
    why = "no cgroup with an io controller"
    if host.cgroups.holder(cgroup_plan.IO) is not None:
        why = "this host has no disks of its own"
    return dict.fromkeys(("io_read", "io_write"), Effect("absent", why))


def _workspace_effect(
    kind: str, spec: LaunchSpec, host: Host, workspace: WorkspacePlan | None
) -> Effect:
    """Return what holds a limit of the workspace and, if nothing does, why not."""
    if workspace is None or not workspace.tmpfs:
        why = "no tmpfs: " + host.tmpfs.reason
        if spec.level == "privileged":
            why = "level privileged has no tmpfs"
        elif host.tmpfs.present:
            why = "its files would not fit into half of its memory"
        return Effect("degraded", f"{_watched(spec)} ({why})")
    if kind == "disk" and workspace.size_bytes != spec.limits.disk_bytes:
        return Effect("enforced", f"{size(workspace.size_bytes or 0)}, {_HALF}")
    return _ENFORCED


def _level_effects(spec: LaunchSpec, host: Host) -> dict[str, Effect]:
    if spec.level == "privileged":
        return dict.fromkeys(_LEVEL_FEATURES, _NOT_ASKED)
    boxed = _of(host.bwrap)
    effects = {"namespaces": boxed, "filesystem": boxed, "network": boxed}
    if spec.level == "network":
        effects["network"] = _NOT_ASKED
    late = any(not each.sockets for each in spec.mounts) and host.landlock_abi < bwrap.SOCKETS_ABI
    if late and host.bwrap.present:
        effects["filesystem"] = Effect("enforced", _LATE_SOCKETS)
    misplaced = [each.path for each in spec.mounts if not _is_place(bwrap.place_of(each))]
    if misplaced and host.bwrap.present:
        reason = f"{', '.join(misplaced)} cannot be a mount; level privileged shows everything"
        effects["filesystem"] = Effect("absent", reason)
    inside = [] if bwrap.can_stage(host) else bwrap.unsafe_mounts(spec)
    if inside and host.bwrap.present:
        reason = f"{', '.join(inside)} cannot be mounted inside of what the agent writes to: "
        effects["filesystem"] = Effect("absent", reason + host.tmpfs.reason)
    # Without bwrap nobody loads a filter or runs our last step.
    effects["seccomp"] = _of(host.seccomp) if host.bwrap.present else boxed
    effects["landlock"] = _landlock(spec, host) if host.bwrap.present else boxed
    reason = "" if host.uid == 0 else "callgate itself is not root"
    effects["uid_drop"] = Effect("enforced", reason)
    return effects


def _is_place(path: str) -> bool:
    """Whether it is absolute and not the root, which is the sandbox's own."""
    return path.startswith("/") and path.strip("/") != ""


def _landlock(spec: LaunchSpec, host: Host) -> Effect:
    """Return what landlock adds; what namespaces and the filter give is not asked of it."""
    found = host.landlock_abi
    if found == 0:
        return Effect("absent", "this kernel has no landlock")
    instead = [_INSTEAD[each] for each in bwrap.refused(spec.level, found) if each in _INSTEAD]
    if not instead:
        return _ENFORCED
    told = f"landlock version {found} knows less than {bwrap.SCOPE_ABI}: {', '.join(instead)}"
    sockets = [mount.path for mount in spec.mounts if mount.sockets]
    if sockets:
        return Effect("degraded", f"{told}; sockets of {', '.join(sockets)} cannot be used")
    return Effect("enforced", told)


def _tree_kill(host: Host) -> Effect:
    if not host.warden.present:
        return Effect("degraded", host.warden.reason)
    return _ENFORCED


def _of(capability: Capability) -> Effect:
    return _ENFORCED if capability.present else Effect("absent", capability.reason)


def _watched(spec: LaunchSpec) -> str:
    return f"watched every {spec.monitor_interval_ns / _SECOND_NS:g} s, ended above it"


def _gaps(spec: LaunchSpec, effective: dict[str, Effect]) -> dict[str, str]:
    gaps = {}
    for feature, effect in effective.items():
        if effect.status == "enforced" or effect is _NOT_ASKED or feature in _NEVER_A_GAP:
            continue
        of_level = feature in _LEVEL_FEATURES or spec.level == "strict"
        written = effect.status == "absent" and feature not in spec.assumed
        if of_level or written:
            gaps[feature] = effect.reason
    return gaps
