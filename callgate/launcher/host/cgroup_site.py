"""Where groups can be made: below callgate's own, in each hierarchy that lets us.

IO, blocking. v2 first. A v2 group may have either processes or children with controllers. So
in which group there can be others depends on who else is in it:

- nobody: callgate moves itself into a child of it, as in a service with `Delegate=yes`;
- a container's processes, in the group that the container sees as its root: all of them are
  moved into that child, as a container engine inside of a container does;
- a login's or an application's, in a scope of systemd: systemd is asked (by `busctl`) to move
  callgate, and nobody else, into a scope of its own, as `systemd-run --scope` would have;
- a service's: nobody is moved, because systemd would lose track of it. The reason says how to
  get a group of one's own.

Or a policy names the group (`cgroup_parent`); then no other one of v2 is used. Whoever is left in
the child at the end, the process or a warden, goes back and removes it. v1 has no such
rule. What is found is tried: a group is made and removed.
"""

from __future__ import annotations

import atexit
import errno
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from callgate.launcher.host import cgroup
from callgate.launcher.plan.capabilities import Cgroups
from callgate.launcher.plan.cgroup_plan import CONTROLLERS, IO
from callgate.launcher.warden.leftovers import SELF, step_back

if TYPE_CHECKING:
    from collections.abc import Mapping

V1_HIERARCHIES = (*CONTROLLERS, "cpuacct", "freezer", IO)
_V1_NAMES = {IO: "blkio"}
_IN_MEMORY = ("ram", "zram")
"""Block devices that are no disks."""
DELEGATE = "start callgate in a group of its own: systemd-run --user --scope -p Delegate=yes"
WRITABLE = (
    "give the container a cgroup of its own that it may write: docker run --cgroupns=private "
    "-v /sys/fs/cgroup:/sys/fs/cgroup:rw, or --privileged"
)
SYSTEMD = Path("/run/systemd/system")
"""Is there where systemd runs: sd_booted(3)."""
BUSCTL = Path("/usr/bin/busctl")
_ASK_S = 5.0
"""systemd answers in milliseconds; a bus that hangs must not hold a launch."""
_LOOK_S = 0.01
_ROUNDS = 10
"""A process that forks while its group is emptied leaves a child for the next round."""


def find(parent: str | None = None) -> Cgroups:
    """Look, enable what can be enabled, and try it; `parent` is the v2 group that was named."""
    mounts = _mounts(_read("/proc/self/mountinfo"))
    own = _own(_read("/proc/self/cgroup"))
    v2: Path | None = None
    controllers: tuple[str, ...] = ()
    reason = "no cgroup v2 is mounted"
    site = ""
    if parent is not None:
        v2, controllers, reason = _named(Path(parent), mounts)
        site = "the group that the policy names"
    elif "" in mounts and "" in own:
        v2, controllers, reason, site = _v2(_place(mounts[""], own[""]))
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
        site=site if v2 is not None else "",
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


def _v2(place: Path | None) -> tuple[Path | None, tuple[str, ...], str, str]:
    """Return the directory for groups, its controllers, why there are no more, and whose it is."""
    if place is None:
        return None, (), "callgate's own group is not below the mounted one", ""
    if place.name == SELF:
        place = place.parent
    else:
        _sweep(place)
    inside, asked = _is_inside(place), None
    if not _can_make(place) or _is_short(place):
        asked = _own_scope(place)
        if asked is not None:
            place = asked
    if not _can_make(place):
        help_ = WRITABLE if inside else DELEGATE
        return None, (), f"no group can be made in {place}; {help_}", ""
    controllers, reason = _enabled(place, all_of_it=inside)
    site = "its container's group" if inside else "callgate's own group"
    return place, controllers, reason, f"{place.name}, made by systemd" if asked else site


def _named(
    place: Path, mounts: Mapping[str, tuple[str, str]]
) -> tuple[Path | None, tuple[str, ...], str]:
    """Return the group that was named, if it can be used: that is never somebody else's."""
    if "" not in mounts or not place.is_relative_to(mounts[""][1]):
        return None, (), f"{place} is in no cgroup v2 that is mounted here"
    if not (place / "cgroup.controllers").exists():
        return None, (), f"there is no cgroup {place}"
    if _read(place / "cgroup.procs").split():
        return None, (), f"{place} has processes of its own: name one that has none"
    if not _can_make(place):
        return None, (), f"no group can be made in {place}: give it to callgate's user"
    return place, *_enabled(place)


def _enabled(place: Path, *, all_of_it: bool = False) -> tuple[tuple[str, ...], str]:
    """Enable what is offered; return what there is then, and why there is no more."""
    known = (*CONTROLLERS, IO)
    offered = set(_read(place / "cgroup.controllers").split()) & set(known)
    enabled = set(_read(place / "cgroup.subtree_control").split())
    reason = "" if offered >= set(CONTROLLERS) else "not delegated to this group"
    if not offered <= enabled:
        reason = _enable(place, offered - enabled, all_of_it=all_of_it) or reason
        enabled = set(_read(place / "cgroup.subtree_control").split())
    return tuple(name for name in known if name in enabled), reason


def _is_inside(place: Path) -> bool:
    """Return whether a group is the root that a container sees, and not the machine's."""
    own = _own(_read("/proc/self/cgroup")).get("", "")
    return own in ("/", f"/{SELF}") and (place / "cgroup.type").exists()


def _is_short(place: Path) -> bool:
    """Return whether others are in a group that has not all controllers for its children."""
    others = set(_read(place / "cgroup.procs").split()) - {str(os.getpid())}
    enabled = set(_read(place / "cgroup.subtree_control").split())
    return bool(others) and not enabled >= set(CONTROLLERS)


def _own_scope(place: Path) -> Path | None:
    """Ask systemd to move callgate out of a scope, into one of its own; None if it does not."""
    if place.suffix != ".scope" or not SYSTEMD.is_dir() or not BUSCTL.exists():
        return None
    name = f"callgate-{os.getpid()}.scope"
    bus = "--system" if os.geteuid() == 0 else "--user"
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
    method = ("org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))")
    properties = ("2", "PIDs", "au", "1", str(os.getpid()), "Delegate", "b", "true", "0")
    words = [str(BUSCTL), bus, "call", *manager, *method, name, "fail", *properties]
    try:
        subprocess.run(  # noqa: S603  # our own words
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    until = time.monotonic() + _ASK_S  # the answer is a job, which is done a little later
    while time.monotonic() < until:
        mounts = _mounts(_read("/proc/self/mountinfo"))
        now = _place(mounts[""], _own(_read("/proc/self/cgroup"))[""])
        if now is not None and now.name == name:
            return now
        time.sleep(_LOOK_S)
    return None


def _enable(place: Path, names: set[str], *, all_of_it: bool) -> str:
    """Enable controllers; return why that failed, or nothing."""
    wanted = " ".join(f"+{name}" for name in sorted(names))
    try:
        cgroup.write(place / "cgroup.subtree_control", wanted)
    except OSError:
        if not _step_aside(place, all_of_it=all_of_it):
            return f"other processes share callgate's own group; {DELEGATE}"
        try:
            cgroup.write(place / "cgroup.subtree_control", wanted)
        except OSError as error:
            return f"{wanted} was refused ({error.strerror})"
    return ""


def _step_aside(place: Path, *, all_of_it: bool) -> bool:
    """Move into a child, if nobody else is in the group, or with all of a container."""
    present = _read(place / "cgroup.procs").split()
    if present != [str(os.getpid())] and not all_of_it:
        return False
    try:
        (place / SELF).mkdir(exist_ok=True)
        if not _is_ours(place / SELF):
            return False
        for _ in range(_ROUNDS):
            for pid in present:
                try:
                    cgroup.write(place / SELF / "cgroup.procs", pid)
                except OSError as error:
                    if error.errno != errno.ESRCH:  # it has ended meanwhile
                        raise
            present = _read(place / "cgroup.procs").split()
            if not present:
                atexit.register(_step_back, place, os.getpid())
                return True
    except OSError:
        return False
    return False


def _step_back(place: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork, which has the same list of what to do at its end
        with suppress(OSError):
            step_back(str(place))


def _sweep(place: Path) -> None:
    """Remove a child that another callgate left, if it is of ours; the kernel keeps a used one."""
    with suppress(OSError):
        if _is_ours(place / SELF):
            (place / SELF).rmdir()


def _is_ours(group: Path) -> bool:
    return group.lstat().st_uid == os.geteuid()


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
