"""What this host can enforce, proved by doing it: the findings of `callgate doctor`.

IO, blocking. The host is the launcher's own survey, and each finding does the thing itself
(`trial`): sets a limit and runs into it, makes a namespace, loads the filter, joins a group,
kills an orphan. At the end a command is launched at each level by the launcher with all its
layers, so what holds here holds for agents. Where something is refused, the finding names
the cause and what the host's owner can do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from callgate.launcher.host import cgroup, seccomp, trial
from callgate.launcher.host.causes import NamespaceFacts, no_namespaces
from callgate.launcher.host.cgroup_site import DELEGATE, WRITABLE
from callgate.launcher.plan import cgroup_plan
from callgate.launcher.plan.bwrap import SCOPE_ABI, SOCKETS_ABI
from callgate.launcher.plan.capabilities import DROP_ID
from callgate.launcher.plan.cgroup_plan import CgroupPlan
from callgate.launcher.plan.effects import NOT_ASKED
from callgate.launcher.plugins import find_launcher
from callgate.launcher.protocol import LaunchRefused, Status, gaps_text
from callgate.launcher.warden import trial_acts
from callgate.model import EnvSpec, LaunchSpec, Level, ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from callgate.launcher.host.trial import Tried
    from callgate.launcher.plan.capabilities import Host
    from callgate.launcher.plan.cgroup_plan import Counters
    from callgate.launcher.protocol import Effect, Launcher

GROUP_LIMITS: Final = ResourceLimits(
    memory_bytes=trial_acts.GROUP_MEMORY_BYTES, cpu_millicores=100, pids=trial_acts.GROUP_PIDS
)
"""Small enough to run into at once."""
LEVEL_LIMITS: Final = ResourceLimits(
    memory_bytes=64 * 1024 * 1024,
    cpu_millicores=1000,
    pids=16,
    disk_bytes=16 * 1024 * 1024,
    wall_time_ns=int(trial.TIMEOUT_S * 1e9),
)
COMMAND: Final = ("/bin/sh", "-c", "exit 0")
_STAYING: Final = 2
"""The process of `stay` and the one that it leaves behind."""
_LOOK_S: Final = 0.005


class Finding(msgspec.Struct, frozen=True):
    """One feature: whether it can be had here; if not, why not and what would help."""

    feature: str
    status: Status
    why: str = ""
    fix: str = ""


def find(host: Host, progress: Callable[[str], None]) -> Iterator[Finding]:
    """Yield everything that can be tried here, cheap things first, naming each before it is."""
    if host.platform == "win32":
        return
    trials = LINUX if host.platform == "linux" else {"rlimits": LINUX["rlimits"]}
    known = facts()
    for feature, find_one in trials.items():
        progress(feature)
        status, why, fix = find_one(host, known)
        yield Finding(feature, status, why, fix if status != "enforced" else "")


_Answer = tuple[Status, str, str]
"""Status, why, and what would help."""
if TYPE_CHECKING:
    _Trial = Callable[[Host, NamespaceFacts], _Answer]


def _done(tried: Tried, fix: str, *, otherwise: Status = "absent") -> _Answer:
    """Return what a trial came to, where it can have no other cause than its own."""
    return "enforced" if tried.ok else otherwise, tried.reason, fix


def user_namespaces(host: Host, known: NamespaceFacts) -> _Answer:
    """Try a user namespace: without root everything in a sandbox is made in one."""
    tried = trial.act("user_namespace", _dropped(host))
    return _namespaces(known, tried.ok, tried.reason)


def sandbox(host: Host, known: NamespaceFacts) -> _Answer:
    """Judge what the survey saw when it ran bwrap, as the user that agents will be."""
    boxed = host.bwrap
    if not host.bwrap_path:
        return "absent", boxed.reason, _install("bubblewrap")
    if boxed.reason.startswith(trial.SHARED):
        return "absent", boxed.reason, "use a bwrap that is not setuid and not wrapped"
    said = boxed.reason.splitlines()[-1:] or [""]
    return ("enforced", "bwrap", "") if boxed.present else _namespaces(known, False, said[0])


def _namespaces(known: NamespaceFacts, ok: bool, said: str) -> _Answer:  # noqa: FBT001
    cause = no_namespaces(known)
    return ("enforced", "", "") if ok else ("absent", f"{cause.why} ({said})", cause.fix)


def filters(_host: Host, _known: NamespaceFacts) -> _Answer:
    """Make the filter of sandboxes, load it, and see it refuse."""
    try:
        program = seccomp.program()
    except seccomp.NotInstalled as error:
        return "absent", str(error), _install("libseccomp2")
    except seccomp.Unavailable as error:
        return "absent", str(error), "use Linux 4.14 or newer on x86_64 or aarch64"
    return _done(trial.act("seccomp", stdin=program), "use a kernel with CONFIG_SECCOMP_FILTER")


def landlock(_host: Host, _known: NamespaceFacts) -> _Answer:
    """Build landlock, and see it refuse."""
    tried = trial.act("wall")
    if not tried.ok:
        fix = "boot a kernel from 5.13 on with `landlock` in its lsm= list"
        return "absent", tried.reason, fix
    if (tried.value or 0) < SCOPE_ABI:
        why = f"version {tried.value}: level network has fewer kinds of sockets"
        return "enforced", why, ""
    late = "; sockets that the host makes below a mount after a launch are not refused (9 can)"
    return "enforced", f"version {tried.value}{late * ((tried.value or 0) < SOCKETS_ABI)}", ""


def workspace(_host: Host, known: NamespaceFacts) -> _Answer:
    """Fill a workspace that has a size and a number of files."""
    tried = trial.act("tmpfs")
    if tried.ok:
        return "enforced", "tmpfs", ""
    return "degraded", f"counted instead ({tried.reason})", no_namespaces(known).fix


def uid_drop(host: Host, _known: NamespaceFacts) -> _Answer:
    """Become the user that agents of a root callgate are."""
    if host.uid != 0:
        return "enforced", "callgate itself is not root", ""
    return _done(trial.act("pidfd", DROP_ID), "give callgate CAP_SETUID and CAP_SETGID")


def limit(controller: str, name: str, held: Callable[[Tried, Counters], bool]) -> _Trial:
    """Return a trial of one limit of a group: an act runs into it, `held` judges how it went."""
    return lambda host, _known: _in_group(host, controller, name, held)


def _in_group(
    host: Host, controller: str, name: str, held: Callable[[Tried, Counters], bool]
) -> _Answer:
    """Do an act in a group with one limit; `held` judges by the act and the kernel's counters."""
    holder = host.cgroups.holder(controller)
    status: Status = "absent" if controller == "cpu" else "degraded"
    if holder is None:
        instead = "" if controller == "cpu" else "watched once a second instead: "
        return status, instead + _without_delegate(host), delegation(host)
    settings = cgroup_plan.settings(holder, controller, GROUP_LIMITS)
    plan = CgroupPlan(holder == "v2", (controller,) if holder == "v1" else (), settings)
    try:
        with _made(host, plan) as (group, join):
            tried = trial.act(name, join=join)
            if held(tried, group.counters()):
                return "enforced", f"cgroup {holder}", ""
            failed = tried.reason or str(tried.value)
    except OSError as error:
        failed = str(error)
    return status, f"the limit was set and did not hold ({failed})", delegation(host)


def ended_at_once(host: Host, _known: NamespaceFacts) -> _Answer:
    """End a group that was joined before the start, with all that left its session."""
    groups = host.cgroups
    plan = CgroupPlan(groups.v2 is not None, ("freezer",) if "freezer" in groups.v1 else ())
    why = "a group was not empty after its end"
    if groups.v2 is None and not plan.v1:
        why = f"each process is killed by itself: {_without_delegate(host)}"
        return "degraded", why, delegation(host)
    try:
        with _made(host, plan) as (group, join):
            if _killed(group, join):
                v2 = ", ".join(each for each in ("v2", groups.site) if each)
                return "enforced", v2 if groups.v2 is not None else "v1 freezer", ""
    except OSError as error:
        why = str(error)
    return "degraded", why, delegation(host)


@contextmanager
def _made(host: Host, plan: CgroupPlan) -> Iterator[tuple[cgroup.Group, tuple[int, ...]]]:
    """Make a group; yield it and the descriptors to join it by; remove it."""
    group = cgroup.group_for(host.cgroups, plan, f"probe-{os.getpid()}")
    group.make(plan)
    join: dict[str, int] = {}
    try:
        join, _ = group.join_handles()
        yield group, tuple(join.values())
    finally:
        for fd in join.values():
            os.close(fd)
        group.remove()


def _killed(group: cgroup.Group, join: tuple[int, ...]) -> bool:
    """Start an act that leaves a process behind, end the group; return whether it is empty."""
    with subprocess.Popen(  # noqa: S603  # our own words
        trial.words("stay", None, join),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=join,
    ) as process:
        _until(lambda: len(group.processes()) >= _STAYING)
        group.kill()
        empty = _until(lambda: not group.processes())
        for pid in group.processes():
            os.kill(pid, signal.SIGKILL)
        process.kill()
    _until(lambda: not group.processes())
    return empty


def _until(reached: Callable[[], bool]) -> bool:
    """Look again and again; return whether it was reached in time."""
    until = time.monotonic() + trial.TIMEOUT_S
    while not reached():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


def delegation(host: Host) -> str:
    """Say how callgate gets groups of its own."""
    if WRITABLE in host.cgroups.reason:
        return WRITABLE
    if host.uid == 0 and DELEGATE not in host.cgroups.reason:
        return "mount cgroup2 with its controllers at /sys/fs/cgroup, writable for callgate"
    return DELEGATE


def _without_delegate(host: Host) -> str:
    """Return why there are no groups, without what would help, which is told beside it."""
    return host.cgroups.reason.removesuffix(f"; {DELEGATE}").removesuffix(f"; {WRITABLE}")


def _dropped(host: Host) -> int | None:
    return DROP_ID if host.uid == 0 else None


def _install(package: str) -> str:
    return f"install it (Debian, Ubuntu: apt install {package})"


LINUX: Final[dict[str, _Trial]] = {
    "rlimits": lambda *_: _done(trial.act("rlimits"), "ask for limits that the system allows"),
    "tree kill": lambda *_: _done(
        trial.act("orphans"), "use a kernel with subreapers (3.4 or newer)", otherwise="degraded"
    ),
    "pidfd": lambda *_: _done(trial.act("pidfd"), "use Linux 5.4 or newer", otherwise="degraded"),
    "cgroup": ended_at_once,
    "memory": limit("memory", "grow", lambda done, seen: done.killed and seen.oom_kills > 0),
    "pids": limit("pids", "fork", lambda done, _: done.value == GROUP_LIMITS.pids),
    "cpu": limit("cpu", "burn", lambda done, seen: done.ok and seen.throttled > 0),
    "user namespaces": user_namespaces,
    "sandbox": sandbox,
    "seccomp": filters,
    "landlock": landlock,
    "workspace": workspace,
    "uid drop": uid_drop,
    "terminal": lambda *_: _done(trial.act("terminal"), "mount devpts at /dev/pts"),
}
"""Feature → its trial."""


def facts() -> NamespaceFacts:
    """Read what the kernel and the surroundings say about namespaces."""
    status = _text(Path("/proc/self/status"))
    mode = status.partition("\nSeccomp:")[2].split(maxsplit=1)[:1]
    return NamespaceFacts(
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
    with suppress(OSError):
        return path.read_text()
    return ""


async def try_levels() -> list[Finding]:
    """Launch a command at each level, from the widest to the narrowest; one finding each."""
    launcher = find_launcher()
    try:
        levels: tuple[Level, ...] = get_args(Level)
        return [await _try(launcher, level) for level in reversed(levels)]
    finally:
        await launcher.aclose()


async def _try(launcher: Launcher, level: Level) -> Finding:
    feature = f"level {level}"
    spec = LaunchSpec(
        "doctor",
        COMMAND,
        level=level,
        contained=True,
        limits=LEVEL_LIMITS,
        assumed=("memory", "cpu", "pids", "disk"),
        env=EnvSpec(pass_all=False),
    )
    try:
        run = await launcher.launch(spec, run_id=f"doctor-{level}-{os.getpid()}")
    except LaunchRefused as refused:
        return Finding(feature, "absent", gaps_text(refused.gaps), "see the features above")
    for fd in {run.stdin, run.stdout, run.stderr}:
        os.close(fd)
    stopped = await run.wait()
    if stopped.exit_code != 0:
        return Finding(feature, "absent", f"a command ended with {stopped.reason}")
    return Finding(feature, "enforced", _weaker(run.effective))


def _weaker(effective: Mapping[str, Effect]) -> str:
    """Name what a level is had without: it only comes with `containment`, nobody wrote it."""
    found = {"degraded": "watched only", "absent": "not held"}
    asked = {name: each for name, each in effective.items() if each.reason != NOT_ASKED}
    parts = [
        f"{words}: {', '.join(names)}"
        for status, words in found.items()
        if (names := [name for name, effect in asked.items() if effect.status == status])
    ]
    return "; ".join(parts)
