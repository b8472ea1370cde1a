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

from callgate.launcher.plan import bwrap, cgroup_plan, environment
from callgate.launcher.plan.bwrap import Sandbox  # msgspec reads it
from callgate.launcher.plan.capabilities import DROP_ID
from callgate.launcher.plan.cgroup_plan import CgroupPlan, Setting
from callgate.launcher.protocol import Effect
from callgate.model import Level

if TYPE_CHECKING:
    from callgate.launcher.plan.capabilities import Capability, Command, Host
    from callgate.model import LaunchSpec

NOT_ASKED = "not asked for"
_ENFORCED = Effect("enforced")
_NOT_ASKED = Effect("absent", NOT_ASKED)

RLIMITS = {
    "open_files": ("RLIMIT_NOFILE", "open_files"),
    "cpu_time": ("RLIMIT_CPU", "cpu_time_ns"),
    "address_space": ("RLIMIT_AS", "address_space_bytes"),
    "core_size": ("RLIMIT_CORE", "core_bytes"),
}
_LEVEL_FEATURES = ("namespaces", "network", "filesystem", "seccomp", "landlock", "uid_drop")
_LANDLOCK_NEEDED: dict[Level, int] = {
    "strict": bwrap.SCOPE_ABI,
    "standard": 1,
    "network": bwrap.SCOPE_ABI,
}
_SECOND_NS = 1_000_000_000
_LATE_SOCKETS = (
    "a socket that the host makes below a mount after the launch can be connected to: "
    f"only landlock {bwrap.SOCKETS_ABI} (Linux 7.1) refuses that"
)


class WorkspacePlan(msgspec.Struct, frozen=True, gc=False):
    """A directory for the agent; as a tmpfs the kernel holds its limits."""

    tmpfs: bool
    size_bytes: int | None = None
    files: int | None = None


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
    """Set in the sandbox, because bwrap and our last step need more than the agent may have."""
    drop: int | None
    """The uid and gid to become."""
    no_new_privs: bool
    sandbox: Sandbox | None
    environment: tuple[str, ...] | None
    """Names that pass if they are set; None for everything."""


class Refusal(msgspec.Struct, frozen=True):
    """Nothing was done: what is missing, feature → reason."""

    gaps: dict[str, str]
    effective: dict[str, Effect]


def plan(spec: LaunchSpec, host: Host, command: Command) -> LaunchPlan | Refusal:
    """Return what would be done for the spec on this host, or every gap."""
    sandboxed = spec.level != "privileged" and host.bwrap.present
    cgroup = _cgroup(spec, host, sandboxed=sandboxed)
    workspace = _workspace(spec, host)
    effective = _effects(spec, host, cgroup, workspace)
    if host.uid == 0 and spec.level != "privileged" and not (sandboxed or command.open):
        effective["uid_drop"] = Effect("absent", "without a sandbox no other user can reach it")
    gaps = _gaps(spec, effective)
    if gaps and not spec.allow_degraded:
        return Refusal(gaps, effective)
    sandbox = None
    if sandboxed:
        sandbox = bwrap.sandbox(spec, host, command, seccomp=host.seccomp.present)
    doubt = bwrap.find_doubt(spec, host, command, sandbox)
    if doubt is not None:  # nobody can allow this: it is a hole, not a lack
        return Refusal({"command": doubt}, effective)
    rlimits = _rlimits(spec, host)
    late = tuple(limit for limit in rlimits if sandboxed and limit[0] == "RLIMIT_AS")
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
        drop=DROP_ID if host.uid == 0 and effective["uid_drop"].status == "enforced" else None,
        no_new_privs=spec.contained and host.platform == "linux",
        sandbox=sandbox,
        environment=environment.names(spec),
    )


def _cgroup(spec: LaunchSpec, host: Host, *, sandboxed: bool) -> CgroupPlan | None:
    """A group for whoever is contained: limits go there, and it can be killed at once."""
    if not spec.contained:
        return None
    groups = host.cgroups
    extra = bwrap.EXTRA_PIDS if sandboxed else 0
    settings: list[Setting] = []
    hierarchies: list[str] = []
    for controller in cgroup_plan.CONTROLLERS:
        holder = groups.holder(controller)
        if holder is None:
            continue
        more = cgroup_plan.settings(holder, controller, spec.limits, extra)
        settings += more
        if more and holder == "v1":
            side = cgroup_plan.V1_SIDE_HIERARCHIES.get(controller, ())
            hierarchies += [controller, *(each for each in side if each in groups.v1)]
    if groups.v2 is None and "freezer" in groups.v1:
        hierarchies.append("freezer")
    if groups.v2 is None and not hierarchies:
        return None
    return CgroupPlan(groups.v2 is not None, tuple(hierarchies), tuple(settings))


def _workspace(spec: LaunchSpec, host: Host) -> WorkspacePlan | None:
    limits = spec.limits
    bounded = limits.disk_bytes is not None or limits.files is not None
    if spec.level == "privileged":
        return WorkspacePlan(tmpfs=False) if spec.contained and bounded else None
    tmpfs = bounded and host.tmpfs.present and (spec.level == "strict" or _fits_memory(spec))
    return WorkspacePlan(tmpfs, limits.disk_bytes, limits.files)


def _fits_memory(spec: LaunchSpec) -> bool:
    """Files in a tmpfs count as the agent's memory: they may take half of it, not all."""
    memory, disk = spec.limits.memory_bytes, spec.limits.disk_bytes
    return memory is None or (disk is not None and disk <= memory // 2)


def _rlimits(spec: LaunchSpec, host: Host) -> tuple[tuple[str, int], ...]:
    found = []
    for name, member in RLIMITS.values():
        value: int | None = getattr(spec.limits, member)
        if value is not None and name in host.rlimits:
            # The kernel counts processor time in whole seconds; none would be no limit at all.
            found.append((name, max(1, -(-value // _SECOND_NS)) if name == "RLIMIT_CPU" else value))
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
    on_tmpfs = workspace is not None and workspace.tmpfs
    for kind, value in (("disk", limits.disk_bytes), ("files", limits.files)):
        held = _ENFORCED if on_tmpfs else watched
        effects[kind] = _NOT_ASKED if value is None else held
    isolated = effects["network"].status == "enforced"
    held = Effect("enforced", "no network at all") if isolated else watched
    effects["connections"] = _NOT_ASKED if limits.connections is None else held
    for kind, (name, member) in RLIMITS.items():
        absent = Effect("absent", f"{host.platform} has no {name}")
        held = _ENFORCED if name in host.rlimits else absent
        effects[kind] = _NOT_ASKED if getattr(limits, member) is None else held
    effects["wall_time"] = _NOT_ASKED if limits.wall_time_ns is None else _ENFORCED
    effects["environment"] = _NOT_ASKED if spec.env.pass_all else _ENFORCED
    return effects


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
    effects["landlock"] = _landlock(spec.level, host) if host.bwrap.present else boxed
    reason = "" if host.uid == 0 else "callgate itself is not root"
    effects["uid_drop"] = Effect("enforced", reason)
    return effects


def _is_place(path: str) -> bool:
    """Whether it is absolute and not the root, which is the sandbox's own."""
    return path.startswith("/") and path.strip("/") != ""


def _landlock(level: Level, host: Host) -> Effect:
    needed, found = _LANDLOCK_NEEDED[level], host.landlock_abi
    if found >= needed:
        return _ENFORCED
    if found == 0:
        return Effect("absent", "this kernel has no landlock")
    lacks = "abstract sockets and signals"
    if found < bwrap.TCP_ABI:
        lacks = f"TCP ports, {lacks}"
    return Effect("degraded", f"landlock version {found} does not know {lacks}; {needed} is needed")


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
        if effect.status == "enforced" or effect is _NOT_ASKED or feature == "tree_kill":
            continue
        of_level = feature in _LEVEL_FEATURES or spec.level == "strict"
        written = effect.status == "absent" and feature not in spec.assumed
        if of_level or written:
            gaps[feature] = effect.reason
    return gaps
