"""What this host can enforce, found out by looking and, where looking may lie, by doing.

IO, blocking: call it from a thread. Cheap things are always looked at. What costs a process
(bwrap) or touches the host (cgroups) is tried only for specs that need it. That bwrap is on
the PATH says nothing: AppArmor, a container's seccomp filter or a sysctl may forbid all that
it does, so it is run once, as the user that agents will be.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from callgate.launcher.host import helper_program, seccomp, trial
from callgate.launcher.host.lean_process import interpreter
from callgate.launcher.plan import bwrap
from callgate.launcher.plan.capabilities import RLIMITS, UID_RANGES, Capability, Host, mapped_range
from callgate.launcher.warden import landlock, libc

NO_SUBREAPER = "only Linux has subreapers: what leaves the agent's session is not found"


def survey() -> Host:
    """Return what costs nothing to find out; sandboxes and groups are not looked for."""
    linux = sys.platform == "linux"
    names = [path for path in bwrap.ROOT_LINKS if Path(path).is_symlink()]
    links = {path: str(Path(path).readlink()) for path in names}
    paths = (*bwrap.ROOT_PATHS, *bwrap.ROOT_LINKS, *bwrap.NETWORK_PATHS)
    return Host(
        platform=sys.platform,
        uid=os.geteuid() if hasattr(os, "geteuid") else 1,
        interpreter=str(Path(interpreter()).resolve()),
        interpreter_prefix=str(Path(sys.base_prefix).resolve()),
        uids=_uids(),
        rlimits=_rlimits(),
        warden=Capability(linux, "" if linux else NO_SUBREAPER),
        root_links=links,
        root_paths=tuple(path for path in paths if path not in links and Path(path).exists()),
    )


def with_groups(host: Host, parent: str | None = None) -> Host:
    """Return a copy of `host` with `cgroups` filled in (Linux), below `parent` if it is named."""
    if host.platform != "linux":
        return host
    from callgate.launcher.host import cgroup_site  # noqa: PLC0415  # only who is contained pays

    return msgspec.structs.replace(host, cgroups=cgroup_site.find(parent))


def with_sandbox(host: Host) -> Host:
    """Return a copy of `host` with what a sandbox can be made of."""
    if host.platform != "linux":
        absent = Capability(False, f"there is no bwrap on {host.platform}")
        return msgspec.structs.replace(host, bwrap=absent, tmpfs=absent, seccomp=absent)
    helper = helper_program.bwrap()
    if not helper.path:
        reason = helper.fault or "bwrap is not installed (package bubblewrap)"
        boxed = tmpfs = Capability(False, reason)
    else:
        boxed = trial.sandbox(host, helper.fd)
        tried = trial.act("tmpfs")
        tmpfs = Capability(tried.ok, f"no tmpfs of one's own: {tried.reason}" * (not tried.ok))
    try:
        seccomp.program()
        filtered = Capability(True)
    except seccomp.Unavailable as error:
        filtered = Capability(False, str(error))
    return msgspec.structs.replace(
        host,
        bwrap=boxed,
        bwrap_path=helper.path,
        tmpfs=tmpfs,
        seccomp=filtered,
        landlock_abi=landlock.abi() if libc.available else 0,
    )


def _uids() -> tuple[int, int] | None:
    try:
        return mapped_range(Path("/proc/self/uid_map").read_text(encoding="ascii"))
    except FileNotFoundError:  # not Linux, or a kernel that always has all of them
        return UID_RANGES[0]


def _rlimits() -> tuple[str, ...]:
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return ()
    return tuple(name for name in RLIMITS if hasattr(resource, name))
