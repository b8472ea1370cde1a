"""What of a spec holds on a host: each feature `enforced`, `degraded` or `absent`, with the reason.

Pure. `launch_plan` decides what is done; this module says what that is worth, and which of it
is a gap. `callgate explain` and `effective` print the reasons, so they are for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callgate.launcher.limit_message import size
from callgate.launcher.plan import bwrap, cgroup_plan
from callgate.launcher.protocol import Effect

if TYPE_CHECKING:
    from callgate.launcher.plan.capabilities import Capability, Host
    from callgate.launcher.plan.cgroup_plan import CgroupPlan
    from callgate.launcher.plan.launch_plan import WorkspacePlan
    from callgate.model import LaunchSpec

NOT_ASKED = "not asked for"
_ENFORCED = Effect("enforced")
_NOT_ASKED = Effect("absent", NOT_ASKED)
_NO_HIGH = Effect("absent", "no v2 cgroup with a memory controller; above it there is a warning")

RLIMITS = {
    "open_files": ("RLIMIT_NOFILE", "open_files"),
    "cpu_time": ("RLIMIT_CPU", "cpu_time_ns"),
    "address_space": ("RLIMIT_AS", "address_space_bytes"),
    "core_size": ("RLIMIT_CORE", "core_bytes"),
}
_NEVER_A_GAP = ("tree_kill", "memory_high")
"""A soft limit is a wish: without it there still is the warning of the shadow beside it."""
_LEVEL_FEATURES = ("namespaces", "network", "filesystem", "seccomp", "landlock", "uid_drop")
NICED = "a lower priority, in the place of a share"
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
HALF = "half of its memory"
_LATE_SOCKETS = (
    "a socket that the host makes below a mount after the launch can be connected to: "
    f"only landlock {bwrap.SOCKETS_ABI} (Linux 7.1) refuses that"
)


def decide(
    spec: LaunchSpec, host: Host, cgroup: CgroupPlan | None, workspace: WorkspacePlan | None
) -> dict[str, Effect]:
    """Return for each feature whether it holds on this host, and why if not fully."""
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
        elsewhere = host.platform != "linux" and bool(host.rlimits)
        absent = Effect("degraded", NICED) if elsewhere else absent
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
    parent = spec.cgroup_parent
    in_it = Effect("absent", host.cgroups.reason or "no group is made there")
    if parent is not None and cgroup is not None and host.cgroups.v2 == parent.rstrip("/"):
        in_it = _ENFORCED
    effects["cgroup_parent"] = _NOT_ASKED if parent is None else in_it
    throughput = _throughput(host, cgroup)
    for kind, rate in (
        ("io_read", limits.io_read_bytes_per_s),
        ("io_write", limits.io_write_bytes_per_s),
    ):
        effects[kind] = _NOT_ASKED if rate is None else throughput[kind]
    if limits.open_files is None and spec.level != "privileged" and host.bwrap.present:
        effects["open_files"] = Effect("enforced", f"{OPEN_FILES:,}, which nobody wrote")
    effects["exec"] = _NOT_ASKED if spec.programs is None else _programs(spec, host)
    effects["wall_time"] = _NOT_ASKED if limits.wall_time_ns is None else _ENFORCED
    effects["environment"] = _NOT_ASKED if spec.env.pass_all else _ENFORCED
    return effects


def _programs(spec: LaunchSpec, host: Host) -> Effect:
    if spec.level == "privileged":
        return Effect("absent", "level privileged has no landlock, which would hold the list")
    if not host.bwrap.present or host.landlock_abi == 0:
        return Effect("absent", host.bwrap.reason or "this kernel has no landlock")
    return _of(host.seccomp)


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
    if not host.workspaces:
        if kind == "disk" and "RLIMIT_FSIZE" in host.rlimits and "disk" not in spec.assumed:
            return Effect("degraded", "no file may be longer; all together are not counted")
        return Effect("absent", "this launcher counts no files")
    if workspace is None or not workspace.tmpfs:
        why = "no tmpfs: " + host.tmpfs.reason
        if spec.level == "privileged":
            why = "level privileged has no tmpfs"
        elif host.tmpfs.present:
            why = "its files would not fit into half of its memory"
        return Effect("degraded", f"{_watched(spec)} ({why})")
    if kind == "disk" and workspace.size_bytes != spec.limits.disk_bytes:
        return Effect("enforced", f"{size(workspace.size_bytes or 0)}, {HALF}")
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


def gaps(spec: LaunchSpec, effective: dict[str, Effect]) -> dict[str, str]:
    """Return what was asked for and cannot be had, each with its reason."""
    found = {}
    for feature, effect in effective.items():
        if effect.status == "enforced" or effect is _NOT_ASKED or feature in _NEVER_A_GAP:
            continue
        of_level = feature in _LEVEL_FEATURES or spec.level == "strict"
        written = effect.status == "absent" and feature not in spec.assumed
        if of_level or written:
            found[feature] = effect.reason
    return found
