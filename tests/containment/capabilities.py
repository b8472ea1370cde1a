"""What this host can prove, and what it must be able to prove.

A claim that this host cannot test is skipped with its reason. `CALLGATE_REQUIRE=bwrap,cgroup`
names what must not be skipped: continuous integration sets it, so that a package that went
missing there is a failure and not a quiet gap.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from callgate.launcher.host import survey
from callgate.launcher.plan.bwrap import SCOPE_ABI
from callgate.launcher.warden import tree
from tests.vm.machines import QEMU, UML

if TYPE_CHECKING:
    from collections.abc import Callable

    from callgate.launcher.plan.capabilities import Host

REQUIRED = frozenset(os.environ.get("CALLGATE_REQUIRE", "").split(",")) - {""}


@cache
def this_host() -> Host:
    return survey.with_sandbox(survey.with_groups(survey.survey()))


def _controllers(host: Host) -> str:
    held = [host.cgroups.holder(each) for each in ("memory", "cpu", "pids")]
    return "" if None not in held else host.cgroups.reason


def _forgets(_: Host) -> str:
    """Tried on a child that exits with 130 and is reaped before it is asked about."""
    if not hasattr(os, "pidfd_open"):
        return "no pidfd"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import os; os._exit(130)"])
    pidfd = os.pidfd_open(child.pid)
    try:
        child.wait()
        told = tree.status_of(pidfd)
    finally:
        os.close(pidfd)
    return "" if told is not None else "this kernel forgets how a reaped process ended"


LACKS: dict[str, Callable[[Host], str]] = {
    "linux": lambda host: "" if host.platform == "linux" else f"this is {host.platform}",
    "root": lambda host: "" if host.uid == 0 else "not root",
    "bwrap": lambda host: host.bwrap.reason,
    "tmpfs": lambda host: "" if host.tmpfs.present else host.tmpfs.reason,
    "seccomp": lambda host: host.seccomp.reason,
    "landlock": lambda host: "" if host.landlock_abi >= SCOPE_ABI else "too old, or none",
    "landlock_files": lambda host: "" if host.landlock_abi else "this kernel has none",
    "cgroup": _controllers,
    "cgroup_v2": lambda host: "" if host.cgroups.v2 is not None else "no v2 group of ours",
    "exit_status": _forgets,
    "freezer": lambda host: "" if "freezer" in host.cgroups.v1 else "no v1 freezer",
    "uml": lambda _: UML.why_not(),
    "qemu": lambda _: QEMU.why_not(),
}
"""A capability → why this host does not have it, or nothing."""


def need(*names: str) -> None:
    """Skip, or fail where it is required, if this host lacks any of these."""
    for name in names:
        why = LACKS[name](this_host())
        if why and name in REQUIRED:
            pytest.fail(f"{name} is required here and missing: {why}")
        if why:
            pytest.skip(f"{name}: {why}")


def is_of_an_agent(uid: int) -> bool:
    """Whether an agent in a sandbox may be this user: one of many if we are root, else ours."""
    first, count = this_host().uids or (0, 0)
    return first <= uid < first + count if os.getuid() == 0 else uid == os.getuid()
