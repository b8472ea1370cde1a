"""What a host can enforce, as data: the survey fills it in, the plan reads it.

Pure. A capability is present, or absent with a reason that a person can act on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from callgate.launcher.plan.cgroup_plan import Version

DROP_ID = 65534
"""`nobody`: owns nothing on any distribution."""
UID_RANGES = ((0x70000000, 65536), (61184, 4320))
"""Uids for runs, first and how many: above all that systemd gives to users and containers; else,
in a container that has only 65536 uids, those that systemd gives to services while they run."""


class Capability(msgspec.Struct, frozen=True):
    """One thing that a kernel or a package provides, or why it does not."""

    present: bool
    reason: str = ""


RLIMITS = (
    "RLIMIT_NOFILE",
    "RLIMIT_CPU",
    "RLIMIT_AS",
    "RLIMIT_CORE",
    "RLIMIT_FSIZE",
    "RLIMIT_NPROC",
)
"""Of which a host has some."""


class Cgroups(msgspec.Struct, frozen=True):
    """Where groups can be made, below callgate's own."""

    v2: str | None = None
    """A directory in the v2 hierarchy; `cgroup.kill` works there."""
    v2_controllers: tuple[str, ...] = ()
    v1: dict[str, str] = {}
    """Controller → a directory in its v1 hierarchy."""
    reason: str = ""
    """Why something is missing."""
    disks: tuple[str, ...] = ()
    """The block devices of this host, `MAJOR:MINOR`."""
    site: str = ""
    """Whose group `v2` is."""

    def holder(self, controller: str) -> Version | None:
        """Return the version whose hierarchy has this controller."""
        if self.v2 is not None and controller in self.v2_controllers:
            return "v2"
        return "v1" if controller in self.v1 else None


class Host(msgspec.Struct, frozen=True):
    """A host, as callgate sees it."""

    platform: str = "linux"
    uid: int = 1000
    interpreter: str = "/usr/bin/python3"
    interpreter_prefix: str = "/usr"
    """What a sandbox must see for our own last step in it to run."""
    rlimits: tuple[str, ...] = ()
    """Names that this system has."""
    uids: tuple[int, int] | None = UID_RANGES[0]
    """The first of `UID_RANGES` that is mapped here, of which root gives one to each run."""
    warden: Capability = Capability(True)
    workspaces: bool = True
    """A run can have a directory whose files are counted."""
    cgroups: Cgroups = Cgroups()
    bwrap: Capability = Capability(False, "not looked for")
    bwrap_path: str = "/usr/bin/bwrap"
    """Empty if there is none that can be trusted."""
    tmpfs: Capability = Capability(False, "not looked for")
    """A tmpfs of our own, with a size and a number of files."""
    seccomp: Capability = Capability(False, "not looked for")
    landlock_abi: int = 0
    root_links: dict[str, str] = {}
    """`/bin` → `usr/bin` and the like, where they are links; else they are bound."""
    root_paths: tuple[str, ...] = ()
    """Of those in `bwrap.ROOT_PATHS` that exist here."""


def mapped_range(uid_map: str) -> tuple[int, int] | None:
    """Return the first of `UID_RANGES` that a text of /proc/PID/uid_map has as a whole."""
    rows = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    for first, count in UID_RANGES:
        if any(row[0] <= first and first + count <= row[0] + row[2] for row in rows):
            return first, count
    return None


class Command(msgspec.Struct, frozen=True):
    """What the first word of a command leads to."""

    path: str
    """Absolute."""
    reaches: tuple[str, ...] = ()
    """Files and prefixes that it needs: link targets, a `#!` interpreter, a venv."""
    open: bool = True
    """Whether any user can reach all of them."""
    doubts: tuple[tuple[str, str], ...] = ()
    """What it needs as well, but as a run may have decided, and why: never bound."""
    programs: tuple[str, ...] | None = None
    """Every file that may be executed, if the spec has a list: this program's, and of those."""
