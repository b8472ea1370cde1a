"""Find the programs that callgate itself executes on the host, and keep them open.

A helper (`bwrap`) runs outside of every wall, as callgate's user. So one that a contained
agent has put into a directory of the PATH would be that agent's way out. Directories that
every system fills itself are looked at first, the PATH after them. On the whole way to a
helper (its directories, links and the file) everything belongs to root or to us, nobody
else may write to it, and no agent's writable mount is on it; else it is refused with the path.

A helper is found once in a process, before the first sandbox, and executed by its descriptor:
a file that later takes its name is never run. AppArmor attaches its profiles by the path
of the file behind the descriptor, so a profile for /usr/bin/bwrap still applies. What callgate
runs as itself, its interpreter and its modules, has names only; `find_written` looks at these
before each sandbox.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from callgate.files import find_directory_fault, find_file_fault
from callgate.launcher.host.lean_process import interpreter
from callgate.launcher.warden.safe_path import UnsafePath, open_path

if TYPE_CHECKING:
    from callgate.launcher.host.places import Places

DIRECTORIES: Final = (
    "/usr/bin",
    "/bin",
    "/usr/local/bin",
    "/run/wrappers/bin",  # NixOS: what must be setuid
    "/run/current-system/sw/bin",  # NixOS
)


LOADED: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""What every program of a Linux system loads, or is told by the loader to load."""


class Helper(NamedTuple):
    """A program that was found, or why there is none that can be trusted."""

    path: str
    """Empty if there is none."""
    fd: int = -1
    fault: str = ""


def find(name: str, path: str | None = None) -> Helper:
    """Open a helper program; the descriptor is the caller's.

    The first that is found counts: if it cannot be trusted, none further on the PATH is
    used in its place, because that would hide what has happened.
    """
    folders = [*DIRECTORIES, *(os.environ.get("PATH", "") if path is None else path).split(":")]
    for folder in folders:
        candidate = f"{folder}/{name}"
        if not folder.startswith("/") or not os.path.lexists(candidate):
            continue
        try:
            opened = open_path(candidate, check=_check)
        except OSError as error:
            return Helper("", fault=f"{candidate}: {error.filename}: {error.strerror}")
        mode = os.fstat(opened.fd).st_mode
        if stat.S_ISREG(mode) and mode & 0o111:
            return Helper(candidate, opened.fd)
        os.close(opened.fd)
    return Helper("")


def _check(status: os.stat_result, path: str) -> None:
    """Raise `UnsafePath` for what others than root and us own or may write to."""
    us = os.geteuid()
    if stat.S_ISLNK(status.st_mode):  # its mode says nothing: who may write is its directory's
        fault = None if status.st_uid in {0, us} else "another user's link"
    elif stat.S_ISDIR(status.st_mode):
        fault = find_directory_fault(status, us, above=True)
    else:
        fault = find_file_fault(status, us, owned=True, writing=False)
    if fault is not None:
        raise UnsafePath(path, fault)


@cache
def bwrap() -> Helper:
    """Return the bwrap of this process, found when it is first asked for."""
    return find("bwrap")


def find_written(places: Places, root: Path) -> str | None:
    """Return which of the files that a launch relies on runs could change; None if none.

    They are the programs that it executes, the modules and libraries that these load, and
    `root`, where runs keep their directories: a sweep kills and removes what it finds written
    there.
    """
    modules = (
        Path(os.__file__).parent,
        Path(__file__).parents[2],
        Path(msgspec.__file__).parents[1],
    )
    above = next(each for each in (root, *root.parents) if each.exists())
    for path in map(str, (interpreter(), bwrap().path, *modules, *LOADED, above)):
        if not path.startswith("/"):
            continue
        try:
            opened = open_path(path, places)
        except FileNotFoundError:
            continue  # a system without it
        except OSError as error:
            return f"{path}: {error.filename}: {error.strerror}"
        os.close(opened.fd)
        below = (place for place in places.values() if place.startswith(f"{opened.real}/"))
        whole = root == above or path != str(above)  # else what is ours in there is not there yet
        written = opened.written or (next(below, None) if whole else None)
        if written is not None:
            return f"{path}, which callgate uses, and {written}, which agents can write to, overlap"
    return None
