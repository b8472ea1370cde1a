"""Where groups can be made: below callgate's own, in each hierarchy that lets us.

IO, blocking. v2 first. A v2 group may have either processes or children with controllers,
so if callgate is alone in its group it moves itself into a child of it; if others are there
too, they are not ours to move, and the reason says how to get a group of one's own. v1 has
no such rule. What is found is tried: a group is made and removed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from callgate.launcher.host import cgroup
from callgate.launcher.plan.capabilities import Cgroups
from callgate.launcher.plan.cgroup_plan import CONTROLLERS, IO

SELF = "callgate-self"
"""The child that callgate moves itself into."""
V1_HIERARCHIES = (*CONTROLLERS, "cpuacct", "freezer", IO)
_V1_NAMES = {IO: "blkio"}
_IN_MEMORY = ("ram", "zram")
"""Block devices that are no disks."""
DELEGATE = "start callgate in a group of its own: systemd-run --user --scope -p Delegate=yes"


def find() -> Cgroups:
    """Look, enable what can be enabled, and try it."""
    mounts = _mounts(_read("/proc/self/mountinfo"))
    own = _own(_read("/proc/self/cgroup"))
    v2: Path | None = None
    controllers: tuple[str, ...] = ()
    reason = "no cgroup v2 is mounted"
    if "" in mounts and "" in own:
        v2, controllers, reason = _v2(_place(mounts[""], own[""]))
    v1 = {}
    for name in V1_HIERARCHIES:
        shown = _V1_NAMES.get(name, name)
        if shown in mounts and shown in own:
            place = _place(mounts[shown], own[shown])
            if place is not None and _can_make(place):
                v1[name] = str(place)
    missing = [name for name in CONTROLLERS if name not in controllers and name not in v1]
    return Cgroups(
        v2=None if v2 is None else str(v2),
        v2_controllers=controllers,
        v1=v1,
        reason=f"no {', '.join(missing)} controller: {reason}" if missing else "",
        disks=_disks(),
    )


def _disks() -> tuple[str, ...]:
    """Return the devices that hold something."""
    found = []
    with suppress(OSError):
        for path in sorted(Path("/sys/block").iterdir()):
            number, size = _read(path / "dev").strip(), _read(path / "size").strip()
            if number and size not in ("", "0") and not path.name.startswith(_IN_MEMORY):
                found.append(number)
    return tuple(found)


def _v2(place: Path | None) -> tuple[Path | None, tuple[str, ...], str]:
    """Return the directory for groups, its controllers, and why there are no more of them."""
    if place is None:
        return None, (), "callgate's own group is not below the mounted one"
    if place.name == SELF:
        place = place.parent
    if not _can_make(place):
        return None, (), f"no group can be made in {place}; {DELEGATE}"
    known = (*CONTROLLERS, IO)
    offered = set(_read(place / "cgroup.controllers").split()) & set(known)
    enabled = set(_read(place / "cgroup.subtree_control").split())
    reason = "" if offered >= set(CONTROLLERS) else "not delegated to this group"
    if not offered <= enabled:
        reason = _enable(place, offered - enabled) or reason
        enabled = set(_read(place / "cgroup.subtree_control").split())
    return place, tuple(name for name in known if name in enabled), reason


def _enable(place: Path, names: set[str]) -> str:
    """Enable controllers; return why that failed, or nothing."""
    wanted = " ".join(f"+{name}" for name in sorted(names))
    try:
        cgroup.write(place / "cgroup.subtree_control", wanted)
    except OSError:
        if not _step_aside(place):
            return f"other processes share callgate's own group; {DELEGATE}"
        try:
            cgroup.write(place / "cgroup.subtree_control", wanted)
        except OSError as error:
            return f"{wanted} was refused ({error.strerror})"
    return ""


def _step_aside(place: Path) -> bool:
    """Move into a child, if nobody else is in the group."""
    if _read(place / "cgroup.procs").split() != [str(os.getpid())]:
        return False
    try:
        (place / SELF).mkdir(exist_ok=True)
        cgroup.write(place / SELF / "cgroup.procs", "0")
    except OSError:
        return False
    return True


def _can_make(place: Path) -> bool:
    trial = place / f"{cgroup.PREFIX}try-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    with suppress(OSError):
        trial.rmdir()
    return True


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Controller (none for v2) → (root of the mount, mount point)."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        root, point = fields.split(" ")[3:5]
        if kind == "cgroup2":
            found.setdefault("", (root, point))
        elif kind == "cgroup":
            for name in options.rpartition(" ")[2].split(","):
                found.setdefault(name, (root, point))
    return found


def _own(text: str) -> dict[str, str]:
    """Controller (none for v2) → callgate's own group."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _place(mount: tuple[str, str], own: str) -> Path | None:
    root, point = mount
    if not (own + "/").startswith(root.rstrip("/") + "/"):
        return None
    return Path(point) / own[len(root.rstrip("/")) :].strip("/")


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
