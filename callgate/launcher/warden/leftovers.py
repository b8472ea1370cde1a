"""What a run leaves on the host, and its removal: by the warden, or later by a sweep.

Stdlib only: the warden loads this. Removing tries again for a while, because a cgroup is
busy until the kernel has finished with its last process; what then is still there waits for
the next sweep. Whoever is the last in the group that callgate stepped aside into goes back, or
nobody could join callgate's own group any more (EBUSY).
"""

# A warden does not need pathlib, which costs it an import.
# ruff: noqa: PTH101, PTH106, PTH112, PTH114, PTH118

from __future__ import annotations

import os
import time

from callgate.launcher.warden import libc
from callgate.launcher.warden.warden_stdlib import ignore_os_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

REMOVE_FOR_S = 5.0
"""How long a cgroup was ever seen busy after its last process, with room."""
LOOK_S = 0.002
FREEZE_LOOKS = 100
SELF = "callgate-self"
"""The child of its own group that callgate moves itself into."""


def remove(leftovers: Mapping[str, Any], mounts: Mapping[str, Any] | None) -> None:
    """Remove cgroups and the run's directory; never raises."""
    for path in (mounts or {}).get("unmount", ()):
        with ignore_os_error:
            libc.unmount(path)
    for path in leftovers.get("cgroups", ()):
        remove_cgroup(path)
    directory = leftovers.get("directory")
    if directory is not None:
        remove_tree(directory)
    place = leftovers.get("place")
    if place is not None:
        with ignore_os_error:
            step_back(place)


def remove_cgroup(path: str) -> bool:
    """Remove a cgroup; return whether it is gone."""
    until = time.monotonic() + REMOVE_FOR_S
    while True:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_S)
        else:
            return True


def step_back(place: str) -> bool:
    """Undo the step aside if this process is the last that took it; return whether it was.

    A lock is held until this process is gone: of several that end together each but the last
    sees another.
    """
    import fcntl  # noqa: PLC0415  # only where there are cgroups

    own = os.path.join(place, SELF)
    if not os.path.isdir(own):
        return False
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + REMOVE_FOR_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                os.close(lock)
                return False
            time.sleep(LOOK_S)
    if _read(own, "cgroup.procs") != [str(os.getpid())] or _has_runs(place):
        return False
    enabled = _read(place, "cgroup.subtree_control")
    _write(place, "cgroup.subtree_control", " ".join(f"-{name}" for name in enabled))
    _write(place, "cgroup.procs", "0")
    return remove_cgroup(own)


def _has_runs(place: str) -> bool:
    with os.scandir(place) as entries:
        return any(entry.is_dir() and entry.name != SELF for entry in entries)


def _read(folder: str, name: str) -> list[str]:
    with open(os.path.join(folder, name), encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()


def _write(folder: str, name: str, text: str) -> None:
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def remove_tree(path: str) -> None:
    """Remove a directory of ours, also if the agent took its own rights away from parts of it."""
    import shutil  # noqa: PLC0415  # 10 ms that only the end of a run has to spare

    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):  # it may lead out, to something that is not ours
                with ignore_os_error:
                    os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def kill_cgroup(handles: Mapping[str, int]) -> None:
    """Kill by v2's `cgroup.kill`, or freeze, kill and thaw, as v1 allows."""
    if "kill" in handles:
        with ignore_os_error:
            os.write(handles["kill"], b"1")
    if "freezer" in handles:
        kill_frozen(handles["freezer"], handles["procs"])


def kill_frozen(freezer: int, procs: int) -> None:
    """Kill while frozen: nobody can fork then, so one look finds all processes."""
    with ignore_os_error:
        os.pwrite(freezer, b"FROZEN", 0)
        for _ in range(FREEZE_LOOKS):
            if os.pread(freezer, 64, 0).strip() == b"FROZEN":
                break
            time.sleep(LOOK_S)
        for pid in os.pread(procs, 1 << 20, 0).split():
            with ignore_os_error:
                os.kill(int(pid), 9)
    with ignore_os_error:
        os.pwrite(freezer, b"THAWED", 0)
