"""What this host can enforce, proved by doing it.

IO, blocking. Each probe does the thing itself, in a process of its own: sets a limit and
runs into it, makes a namespace, loads a filter, joins a group, kills an orphan. That a file
exists or a program is installed proves nothing. Where something is refused, the finding
names the cause and what the host's owner can do.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from callgate.launcher import bwrap, probe_groups
from callgate.launcher.causes import Facts, no_namespaces
from callgate.launcher.host import DROP_ID
from callgate.launcher.probe_acts import Finding, act, run, simple
from callgate.launcher.seccomp import Unavailable, program

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.launcher.host import Host

NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
LANDLOCK_FULL: Final = 6
"""The version that level strict needs."""
_MAX_SAID_CHARS: Final = 200


class Probe(NamedTuple):
    """A feature's name, to be shown while it is tried, and the trial."""

    feature: str
    find: Callable[[], Finding]


def probes(host: Host) -> list[Probe]:
    """Everything that can be tried on this host, cheap things first."""
    if host.platform == "win32":
        return []
    found = [Probe("rlimits", rlimits)]
    if host.platform != "linux":
        return found
    known = facts()
    dropped = DROP_ID if host.uid == 0 else None
    return [
        *found,
        Probe("tree kill", tree_kill),
        Probe("pidfd", pidfd),
        Probe("cgroup", lambda: probe_groups.ended_at_once(host)),
        Probe("memory", lambda: probe_groups.memory(host)),
        Probe("pids", lambda: probe_groups.pids(host)),
        Probe("cpu", lambda: probe_groups.cpu(host)),
        Probe("user namespaces", lambda: user_namespaces(known, dropped)),
        Probe("sandbox", lambda: sandbox(known, dropped)),
        Probe("seccomp", seccomp),
        Probe("landlock", landlock),
        Probe("workspace", lambda: workspace(known)),
        Probe("uid drop", lambda: uid_drop(host)),
        Probe("terminal", terminal),
    ]


def rlimits() -> Finding:
    """Limits of a process: set, read back, run into."""
    return simple("rlimits", act("rlimit"), "ask for limits that the system allows")


def tree_kill() -> Finding:
    """No orphan is left, not even by a killed callgate."""
    fix = "use a kernel with subreapers (3.4 or newer)"
    return simple("tree kill", act("orphans"), fix, otherwise="degraded")


def pidfd() -> Finding:
    """Processes by descriptor."""
    return simple("pidfd", act("pidfd"), "use Linux 5.4 or newer", otherwise="degraded")


def user_namespaces(known: Facts, uid: int | None) -> Finding:
    """Without root everything below is made with these."""
    done = act("user_namespace", uid)
    if done.ok:
        return Finding("user namespaces", "enforced")
    cause = no_namespaces(known)
    return Finding("user namespaces", "absent", f"{cause.why} ({done.reason})", cause.fix)


def sandbox(known: Facts, uid: int | None) -> Finding:
    """Run bwrap, as the user that agents will be, and look whether it differs from us."""
    path = shutil.which("bwrap")
    if path is None:
        return Finding("sandbox", "absent", "bwrap is not installed", _install("bubblewrap"))
    links = [Path("/proc/self/ns") / name for name in NAMESPACES]
    options = [f"--unshare-{name}" for name in (*bwrap.NAMESPACES, "net")]
    options += ["--disable-userns", "--ro-bind", "/", "/", "--proc", "/proc"]
    command = [path, *options, "--dev", "/dev", "--", "readlink", *map(str, links)]
    answer = run(command, uid=uid)
    if answer is None or answer.returncode != 0:
        said = "it did not end" if answer is None else _last_line(answer.stderr)
        cause = no_namespaces(known)
        return Finding("sandbox", "absent", f"{cause.why} ({said})", cause.fix)
    theirs = answer.stdout.decode().split()
    pairs = zip(links, theirs, strict=True)
    shared = ", ".join(link.name for link, other in pairs if str(link.readlink()) == other)
    if shared:
        why = f"bwrap ran and did not leave these namespaces: {shared}"
        return Finding("sandbox", "absent", why, "use a bwrap that is not setuid and not wrapped")
    return Finding("sandbox", "enforced", "bwrap")


def seccomp() -> Finding:
    """A filter can be made, and one that was loaded refuses."""
    try:
        program()
    except Unavailable as error:
        fix = f"{_install('libseccomp2')}; pip install 'callgate[sandbox]'"
        return Finding("seccomp", "absent", str(error), fix)
    return simple("seccomp", act("seccomp"), "use a kernel with CONFIG_SECCOMP_FILTER")


def landlock() -> Finding:
    """The kernel's second wall."""
    done = act("landlock")
    if not done.ok:
        fix = "boot a kernel from 5.13 on with `landlock` in its lsm= list"
        return Finding("landlock", "absent", done.reason, fix)
    if (done.value or 0) < LANDLOCK_FULL:
        why = f"version {done.value}; level strict needs {LANDLOCK_FULL}"
        return Finding("landlock", "degraded", why, "use Linux 6.12 or newer")
    return Finding("landlock", "enforced", f"version {done.value}")


def workspace(known: Facts) -> Finding:
    """A workspace with a size and a number of files."""
    done = act("tmpfs")
    if done.ok:
        return Finding("workspace", "enforced", "tmpfs")
    cause = no_namespaces(known)
    return Finding("workspace", "degraded", f"counted instead ({done.reason})", cause.fix)


def uid_drop(host: Host) -> Finding:
    """Agents of a root callgate are not root."""
    if host.uid != 0:
        return Finding("uid drop", "enforced", "callgate itself is not root")
    done = act("pidfd", DROP_ID)
    return simple("uid drop", done, "give callgate CAP_SETUID and CAP_SETGID")


def terminal() -> Finding:
    """Agents that want a terminal."""
    return simple("terminal", act("terminal"), "mount devpts at /dev/pts")


def facts() -> Facts:
    """What the kernel and the surroundings say about namespaces."""
    status = _text(Path("/proc/self/status"))
    mode = status.partition("\nSeccomp:")[2].split(maxsplit=1)[:1]
    return Facts(
        apparmor_restricts=_sysctl("kernel/apparmor_restrict_unprivileged_userns"),
        userns_clone=_sysctl("kernel/unprivileged_userns_clone"),
        max_user_namespaces=_sysctl("user/max_user_namespaces"),
        seccomp_mode=int(mode[0]) if mode else 0,
        container=_container(),
    )


def _sysctl(name: str) -> int | None:
    text = _text(Path("/proc/sys") / name).strip()
    return int(text) if text.isdigit() else None


def _container() -> str | None:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _last_line(said: bytes) -> str:
    """Bwrap's own words, which are one line."""
    lines = said.decode("utf-8", "replace").splitlines() or ["it said nothing"]
    return lines[-1][:_MAX_SAID_CHARS]


def _install(package: str) -> str:
    return f"install it (Debian, Ubuntu: apt install {package})"
