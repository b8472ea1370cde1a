"""What groups of processes can be held to here: joined, run into, ended, removed.

IO, blocking. The groups are made below callgate's own, as for a real run, and are gone
afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from callgate.launcher import cgroup, cgroup_v1, cgroup_v2, probe_child
from callgate.launcher.cgroup_site import DELEGATE
from callgate.launcher.probe_acts import PROBE_TIMEOUT_S, Act, Finding, act, words
from callgate.launcher.settings import CgroupPlan
from callgate.model import ResourceLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from callgate.launcher.cgroup import Counters
    from callgate.launcher.host import Host
    from callgate.launcher.protocol import Status

GROUP_LIMITS: Final = ResourceLimits(
    memory_bytes=probe_child.GROUP_MEMORY_BYTES,
    cpu_millicores=probe_child.GROUP_MILLICORES,
    pids=probe_child.GROUP_PIDS,
)
"""Small enough to run into at once."""
_STAYING: Final = 2
"""The process of `stay` and the one that it leaves behind."""
_LOOK_S: Final = 0.005


def memory(host: Host) -> Finding:
    """The kernel ends whoever takes more."""
    done, counters = _in_group(host, "memory", "grow")
    if done.killed and counters.oom_kills:
        return _held("memory", host)
    return _missing("memory", host, done, "degraded", "watched once a second instead: ")


def pids(host: Host) -> Finding:
    """The kernel refuses one process more."""
    done, _ = _in_group(host, "pids", "fork")
    if done.value == GROUP_LIMITS.pids:
        return _held("pids", host)
    return _missing("pids", host, done, "degraded", "watched once a second instead: ")


def cpu(host: Host) -> Finding:
    """The kernel slows whoever wants more."""
    done, counters = _in_group(host, "cpu", "burn")
    if done.ok and counters.throttled:
        return _held("cpu", host)
    return _missing("cpu", host, done, "absent", "")


def ended_at_once(host: Host) -> Finding:
    """A group that was joined before the start is ended with all that left its session."""
    groups = host.cgroups
    plan = CgroupPlan(groups.v2 is not None, ("freezer",) if "freezer" in groups.v1 else ())
    if groups.v2 is None and not plan.v1:
        why = f"each process is killed by itself: {_reason(host)}"
        return Finding("cgroup", "degraded", why, delegation(host))
    where = "v2" if groups.v2 is not None else "v1 freezer"
    try:
        with _made(host, plan) as (made, join):
            if _killed(made, join):
                return Finding("cgroup", "enforced", where)
    except OSError as error:
        return Finding("cgroup", "degraded", str(error), delegation(host))
    return Finding("cgroup", "degraded", "a group was not empty after its end", delegation(host))


def delegation(host: Host) -> str:
    """How callgate gets groups of its own."""
    if host.uid == 0 and DELEGATE not in host.cgroups.reason:
        return "mount cgroup2 with its controllers at /sys/fs/cgroup, writable for callgate"
    return DELEGATE


def _reason(host: Host) -> str:
    """Why there are none, without what would help, which is told beside it."""
    return host.cgroups.reason.removesuffix(f"; {DELEGATE}")


def _in_group(host: Host, controller: str, name: str) -> tuple[Act, Counters]:
    """Do an act in a group with one limit."""
    holder = host.cgroups.holder(controller)
    if holder is None:
        return Act(ok=False, step=_reason(host)), cgroup.Counters()
    words_of = cgroup_v2 if holder == "v2" else cgroup_v1
    settings = words_of.settings(controller, GROUP_LIMITS, 0)
    plan = CgroupPlan(holder == "v2", (controller,) if holder == "v1" else (), settings)
    try:
        with _made(host, plan) as (made, join):
            return act(name, join=join), made.counters()
    except OSError as error:
        return Act(ok=False, step=str(error)), cgroup.Counters()


@contextmanager
def _made(host: Host, plan: CgroupPlan) -> Iterator[tuple[cgroup.Group, tuple[int, ...]]]:
    """A group and the descriptors to join it by; gone afterwards."""
    group = cgroup.group_for(host.cgroups, plan, f"probe-{os.getpid()}")
    group.make(plan)
    try:
        join, _ = group.join_handles()
        try:
            yield group, tuple(join.values())
        finally:
            for fd in join.values():
                os.close(fd)
    finally:
        group.remove()


def _killed(made: cgroup.Group, join: tuple[int, ...]) -> bool:
    """Start somebody who leaves a process behind; end the group; see that it is empty."""
    with subprocess.Popen(  # noqa: S603  # our own words
        words("stay", None, join),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=join,
    ) as process:
        _until(lambda: len(made.processes()) >= _STAYING)
        made.kill()
        empty = _until(lambda: not made.processes())
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)
        process.kill()
    _until(lambda: not made.processes())
    return empty


def _until(reached: Callable[[], bool]) -> bool:
    """Look again and again; whether it was reached in time."""
    until = time.monotonic() + PROBE_TIMEOUT_S
    while not reached():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


def _held(feature: str, host: Host) -> Finding:
    return Finding(feature, "enforced", f"cgroup {host.cgroups.holder(feature)}")


def _missing(feature: str, host: Host, done: Act, status: Status, instead: str) -> Finding:
    if host.cgroups.holder(feature) is None:
        return Finding(feature, status, instead + done.reason, delegation(host))
    why = f"the limit was set and did not hold ({done.reason or done.value})"
    return Finding(feature, status, why, delegation(host))
