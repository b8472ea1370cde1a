"""What this host can enforce, found out by looking and, where looking may lie, by doing.

IO, blocking: call it from a thread. Cheap things are always looked at. What costs a process
(bwrap) or touches the host (cgroups) is tried only for specs that need it. That bwrap is on
the PATH says nothing: AppArmor, a container's seccomp filter or a sysctl may forbid all that
it does, so it is run once, as the user that agents will be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from callgate.launcher import bwrap, landlock, libc, seccomp
from callgate.launcher.host import DROP_ID, Capability, Host
from callgate.launcher.process import interpreter, stub

TRY_TIMEOUT_S = 30.0
"""A bwrap that does nothing takes 5 ms; a loaded machine has been seen at seconds."""
NO_SUBREAPER = "only Linux has subreapers: what leaves the agent's session is not found"
_RLIMITS = ("RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_CORE")
_MAX_REASON_CHARS = 300


def survey() -> Host:
    """What costs nothing to find out; sandboxes and groups are not looked for."""
    linux = sys.platform == "linux"
    names = [path for path in bwrap.ROOT_LINKS if Path(path).is_symlink()]
    links = {path: str(Path(path).readlink()) for path in names}
    paths = (*bwrap.ROOT_PATHS, *bwrap.ROOT_LINKS, *bwrap.NETWORK_PATHS)
    return Host(
        platform=sys.platform,
        uid=os.geteuid() if hasattr(os, "geteuid") else 1,
        interpreter=str(Path(interpreter()).resolve()),
        interpreter_prefix=str(Path(sys.base_prefix).resolve()),
        rlimits=_rlimits(),
        warden=Capability(linux, "" if linux else NO_SUBREAPER),
        root_links=links,
        root_paths=tuple(path for path in paths if path not in links and Path(path).exists()),
    )


def with_groups(host: Host) -> Host:
    """The same, and where cgroups can be made."""
    if host.platform != "linux":
        return host
    from callgate.launcher import cgroup_site  # noqa: PLC0415  # only who is contained pays

    return msgspec.structs.replace(host, cgroups=cgroup_site.find())


def with_sandbox(host: Host) -> Host:
    """The same, and what a sandbox can be made of."""
    if host.platform != "linux":
        absent = Capability(False, f"there is no bwrap on {host.platform}")
        return msgspec.structs.replace(host, bwrap=absent, tmpfs=absent, seccomp=absent)
    path = shutil.which("bwrap")
    if path is None:
        boxed = tmpfs = Capability(False, "bwrap is not installed (package bubblewrap)")
    else:
        boxed, tmpfs = _try(host, path)
    try:
        seccomp.program()
        filtered = Capability(True)
    except seccomp.Unavailable as error:
        filtered = Capability(False, str(error))
    return msgspec.structs.replace(
        host,
        bwrap=boxed,
        bwrap_path=path or "bwrap",
        tmpfs=tmpfs,
        seccomp=filtered,
        landlock_abi=landlock.abi() if libc.available else 0,
    )


def _try(host: Host, path: str) -> tuple[Capability, Capability]:
    """Whether bwrap works, and whether a tmpfs can be mounted."""
    uid = DROP_ID if host.uid == 0 else host.uid
    options = [f"--unshare-{name}" for name in (*bwrap.NAMESPACES, "net")]
    options += ["--disable-userns", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for target, link in host.root_links.items():
        options += ["--symlink", link, target]
    for target in (each for each in bwrap.ROOT_LINKS if each in host.root_paths):
        options += ["--ro-bind", target, target]
    command = [path, *options, "--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/true"]
    try:
        done = subprocess.run(  # noqa: S603  # our own interpreter and a fixed command
            [interpreter(), "-I", "-S", "-c", stub("trial"), str(uid), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={},
            timeout=TRY_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = Capability(False, f"a trial failed ({error})")
        return failed, failed
    said = done.stdout.decode("utf-8", "replace")
    tmpfs = Capability(said == "tmpfs\n", "" if said == "tmpfs\n" else said.strip())
    why = done.stderr.decode("utf-8", "replace").strip()[-_MAX_REASON_CHARS:]
    if done.returncode != 0:
        return Capability(False, why or f"bwrap ended with {done.returncode}"), tmpfs
    return Capability(True), tmpfs


def _rlimits() -> tuple[str, ...]:
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return ()
    return tuple(name for name in _RLIMITS if hasattr(resource, name))
